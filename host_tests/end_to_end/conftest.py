"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit"))

from made_once import builds_made_once
from paho_subscriber import Subscriber
from umqtt_testkit.waiting import WAIT_LIMIT_S


@pytest.fixture(scope="session", autouse=True)
def _builds_made_once() -> Iterator[None]:
    with builds_made_once():
        yield


@pytest.fixture
def broker() -> Iterator[int]:
    """The port of the paired broker."""
    process = subprocess.Popen(
        [sys.executable, "-m", "umqtt_broker", "-p", "0", "--store", ":memory:"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield int(process.stdout.readline().rpartition(":")[2])
    process.terminate()
    process.communicate(timeout=WAIT_LIMIT_S)


@pytest.fixture
def subscriber(broker: int) -> Iterator[Subscriber]:
    subscriber = Subscriber(broker)
    yield subscriber
    subscriber.close()
