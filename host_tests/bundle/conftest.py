"""Fixtures of the tests of bundles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit"))

from made_once import builds_made_once


@pytest.fixture(scope="session", autouse=True)
def _builds_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with builds_made_once(tmp_path_factory):
        yield
