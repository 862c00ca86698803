"""Fixtures of the command's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cable import Cable
from kit_command import Ended, Family

from umqtt_cli.__main__ import run


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have its own list of allowed projects, and not the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def umqtt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Provide umqtt("demo", "--help", env={…}), which runs the command in this process, in an empty folder."""

    def replaced(*_: object) -> None:
        raise AssertionError("the command would become another program")

    def run_here(*arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(os, "execv", replaced)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capsys.readouterr()
            code = run(arguments)
            return Ended(code, *capsys.readouterr())

    return run_here


@pytest.fixture
def family(tmp_path: Path) -> Family:
    if not Path("/proc/self/environ").exists():
        pytest.skip("finds processes by /proc/*/environ, which this system has not")
    return Family(tmp_path)


@pytest.fixture
def cable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cable:
    """Provide virtual boards by name, and the command in this process."""
    return Cable(tmp_path, monkeypatch, capsys)
