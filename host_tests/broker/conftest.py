"""Fixtures of the broker's tests: one broker a test, on both stores where the law does not depend on the store."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, Peer, StartBroker, StartRedis
from peer5 import Peer5
from umqtt_broker import BrokerConfig
from umqtt_testkit.redis_server import RedisServer


@pytest.fixture
def start_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartRedis]:
    """Start servers with the options given; all are stopped at the end. Skips where the engine is not installed.

    The engine is that of an indirect parameter; without one it is Redis.
    """
    engine = getattr(request, "param", "redis")
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisServer(tmp_path, engine, **options))


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Start brokers with the settings given; all are stopped at the end."""
    with ExitStack() as stack:

        def start(**settings: Any) -> BrokerThread:
            # $SYS topics would be counted among what a test retains; their own tests switch them on.
            return stack.enter_context(BrokerThread(BrokerConfig(**{"port": 0, "sys_interval": 0} | settings)))

        yield start


@pytest.fixture(params=["memory", "sqlite", *(["redis"] if os.environ.get("UMQTT_FULL_SWEEPS") else [])])
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, start_redis: StartRedis, start_broker: StartBroker
) -> BrokerThread:
    """A broker with a store in memory, one with a store on disk, and in full sweeps one with a store in Redis."""
    if request.param == "redis":
        return start_broker(store=start_redis().url)
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
