"""Caches the parts of a deployment for all tests of a process: the same sources always give the same files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from umqtt_kit.deploy import build as build_module


@contextlib.contextmanager
def builds_made_once() -> Iterator[None]:
    """Within this context, umqtt_kit.deploy.build joins and compiles each source only once in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AppBundle", "Bundle"):
            patch.setattr(build_module, name, _bundle_once(getattr(build_module, name)))
        patch.setattr(build_module, "compile_file", _compile_once(build_module.compile_file))
        yield


def _bundle_once(make: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[tuple, Any] = {}

    def once(folder: Path, **options: Any) -> Any:
        files = (file for pattern in ("*.py", "*.pyi") for file in sorted(folder.rglob(pattern)))
        key = (*options.items(), *((file.relative_to(folder), file.read_bytes()) for file in files))
        if key not in made:
            made[key] = make(folder, **options)
        return made[key]

    return once


def _compile_once(compile_file: Callable[..., int]) -> Callable[..., int]:
    made: dict[tuple, bytes] = {}

    def once(source: Path, target: Path, name: str, *options: Any) -> int:
        key = (source.read_bytes(), name, *options)
        if key not in made:
            compile_file(source, target, name, *options)
            made[key] = target.read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.write_bytes(made[key])

    return once
