"""Fixtures of the broker's tests: one broker per test, on both stores if the law does not depend on the store."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_certificates import Pki
from broker_peer import BrokerThread, Peer, StartBroker, StartRedis
from peer5 import Peer5
from umqtt_broker import BrokerConfig
from umqtt_testkit.redis_server import RedisServer


@pytest.fixture
def start_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartRedis]:
    """Provide a function that starts servers with the given options; all are stopped at the end.

    The engine is that of an indirect parameter; without one it is Redis. Skips if the engine is not installed.
    """
    engine = getattr(request, "param", "redis")
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisServer(tmp_path, engine, **options))


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Provide a function that starts brokers with the given settings; all are stopped at the end."""
    with ExitStack() as stack:

        def start(**settings: Any) -> BrokerThread:
            # $SYS topics would count among the retained messages; their own tests enable them.
            return stack.enter_context(BrokerThread(BrokerConfig(**{"port": 0, "sys_interval": 0} | settings)))

        yield start


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Provide certificates, made once."""
    return Pki(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["memory", "sqlite", *(["redis"] if os.environ.get("UMQTT_FULL_SWEEPS") else [])])
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, start_redis: StartRedis, start_broker: StartBroker
) -> BrokerThread:
    """Provide a broker with a store in memory, one with a store on disk, and in full sweeps one in Redis."""
    if request.param == "redis":
        return start_broker(store=start_redis().url)
    return start_broker(store=":memory:" if request.param == "memory" else str(tmp_path / "broker.db"))


@pytest.fixture
def peer(broker: BrokerThread) -> Iterator[Callable[..., Peer]]:
    """Provide peer(client_id, clean_session=…, …), which connects peers to `broker`; they are dropped at the end."""
    with ExitStack() as stack:

        def connect(client_id: bytes, **options: Any) -> Peer:
            connected = stack.enter_context(Peer(broker.port))
            connected.connect(client_id, **options)
            return connected

        yield connect


@pytest.fixture
def peer5(broker: BrokerThread) -> Iterator[Callable[..., Peer5]]:
    """Provide peer5(client_id, session_expiry_interval=…, …), which connects peers of MQTT 5 to `broker`."""
    with ExitStack() as stack:

        def connect(client_id: bytes, **options: Any) -> Peer5:
            connected = stack.enter_context(Peer5(broker.port))
            connected.connect5(client_id, **options)
            return connected

        yield connect
