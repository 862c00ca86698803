"""Fixtures of the broker's tests: one broker a test, on both stores where the law does not depend on the store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, Peer, StartBroker
from peer5 import Peer5
from umqtt_broker import BrokerConfig


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Start brokers with the settings given; all are stopped at the end."""
    with ExitStack() as stack:

        def start(**settings: Any) -> BrokerThread:
            # $SYS topics would be counted among what a test retains; their own tests switch them on.
            return stack.enter_context(BrokerThread(BrokerConfig(**{"port": 0, "sys_interval": 0} | settings)))

        yield start


@pytest.fixture(params=["memory", "sqlite"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, start_broker: StartBroker) -> BrokerThread:
    """A broker with a store in memory, and one with a store on disk."""
    return start_broker(store=":memory:" if request.param == "memory" else str(tmp_path / "broker.db"))


@pytest.fixture
def peer(broker: BrokerThread) -> Iterator[Callable[..., Peer]]:
    """Connect peers to `broker`: peer(client_id, clean_session=…, …). What is open at the end is dropped."""
    with ExitStack() as stack:

        def connect(client_id: bytes, **options: Any) -> Peer:
            connected = stack.enter_context(Peer(broker.port))
            connected.connect(client_id, **options)
            return connected

        yield connect


@pytest.fixture
def peer5(broker: BrokerThread) -> Iterator[Callable[..., Peer5]]:
    """Connect peers of MQTT 5 to `broker`: peer5(client_id, session_expiry_interval=…, …)."""
    with ExitStack() as stack:

        def connect(client_id: bytes, **options: Any) -> Peer5:
            connected = stack.enter_context(Peer5(broker.port))
            connected.connect5(client_id, **options)
            return connected

        yield connect
