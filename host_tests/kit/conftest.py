"""Fixtures of the command's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

# How long these tests wait, too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

from cable import Cable
from kit_command import Ended, Family, umqtt_command
from patience import PATIENCE


@pytest.fixture
def umqtt(tmp_path: Path) -> Callable[..., Ended]:
    """umqtt("demo", "--help", env={…}) runs the command to its end in an empty folder."""

    def run(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 2 * PATIENCE) -> Ended:
        ended = subprocess.run(
            umqtt_command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def family(tmp_path: Path) -> Family:
    if not Path("/proc/self/environ").exists():
        pytest.skip("finds processes by /proc/*/environ, which this system has not")
    return Family(tmp_path)


@pytest.fixture
def cable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cable:
    """Virtual boards by name, and the command in this process."""
    return Cable(tmp_path, monkeypatch, capsys)
