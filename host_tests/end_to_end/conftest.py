"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from paho_subscriber import Subscriber
from umqtt_testkit.waiting import WAIT_LIMIT_S


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
