"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_here import broker_here
from paho_subscriber import Subscriber


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
