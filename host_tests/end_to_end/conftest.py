"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "spark"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit"))

from broker_here import broker_here
from made_once import builds_made_once
from paho_subscriber import Subscriber


@pytest.fixture(scope="session", autouse=True)
def _builds_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with builds_made_once(tmp_path_factory):
        yield


@pytest.fixture
def broker() -> Iterator[int]:
    """Provide the port of the paired broker."""
    with broker_here() as port:
        yield port


@pytest.fixture
def subscriber(broker: int) -> Iterator[Subscriber]:
    subscriber = Subscriber(broker)
    yield subscriber
    subscriber.close()
