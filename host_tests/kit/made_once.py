"""Caches the parts of a deployment for all tests of a run: the same sources always give the same files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from umqtt_kit.deploy import build as build_module
from umqtt_kit.deploy import tracebacks


@contextlib.contextmanager
def builds_made_once(temporary: pytest.TempPathFactory) -> Iterator[None]:
    """Within this context, umqtt_kit.deploy joins and compiles each source only once, whichever worker does it."""
    place = temporary.getbasetemp()
    kept = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "made-once"
    kept.mkdir(exist_ok=True)
    bundle, app_bundle, compile_file = build_module.Bundle, build_module.AppBundle, build_module.compile_file
    loaded: dict[str, Any] = {}

    def once(key: tuple, make: Callable[[], Any]) -> Any:
        name = hashlib.sha256(repr(key).encode()).hexdigest()
        if name not in loaded:
            file = kept / name
            if not file.exists():
                made = make()
                with tempfile.NamedTemporaryFile(dir=kept, delete=False) as written:
                    pickle.dump(made, written)
                os.replace(written.name, file)
            loaded[name] = pickle.loads(file.read_bytes())
        return loaded[name]

    def bundled(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(folder: Path, **options: Any) -> Any:
            files = (file for pattern in ("*.py", "*.pyi") for file in sorted(folder.rglob(pattern)))
            contents = [(file.relative_to(folder).as_posix(), file.read_bytes()) for file in files]
            return once((make.__name__, sorted(options.items()), contents), lambda: make(folder, **options))

        return made

    def compiled(source: Path, target: Path, name: str, *options: Any) -> int:
        def make() -> bytes:
            compile_file(source, target, name, *options)
            return target.read_bytes()

        target.parent.mkdir(parents=True, exist_ok=True)
        return target.write_bytes(once((source.read_bytes(), name, options), make))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "Bundle", bundled(bundle))
        patch.setattr(build_module, "AppBundle", bundled(app_bundle))
        patch.setattr(tracebacks, "AppBundle", bundled(app_bundle))
        patch.setattr(build_module, "compile_file", compiled)
        yield
