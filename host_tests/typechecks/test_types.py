"""The whole project passes its type checker. It is a test, so that it runs in parallel with the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.smoke
def test_no_type_is_wrong() -> None:
    """Planted: a function that returns a str where it says int."""
    checker = [Path(sys.executable).with_name("pyrefly"), "check"]
    ended = subprocess.run(checker, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
