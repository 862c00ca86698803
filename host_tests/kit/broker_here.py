"""A paired broker in a thread of the tests' own process: it starts at once, for tests that need no broker process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from umqtt_broker import Broker, BrokerConfig
from umqtt_testkit.waiting import WAIT_LIMIT_S


@contextlib.contextmanager
def broker_here(**settings: Any) -> Iterator[int]:
    """Run a broker that keeps its sessions in memory; yield its port of 127.0.0.1. settings: more of BrokerConfig."""
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        async with Broker(BrokerConfig(port=0, store=":memory:", **settings)) as broker:
            started.set_result((broker.port, asyncio.get_running_loop(), ended))
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    port, loop, ended = started.result(WAIT_LIMIT_S)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(WAIT_LIMIT_S)
        assert not thread.is_alive()
