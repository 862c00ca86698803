"""Deadlines share timers: none fires early or much too late, and none is left behind by clients that go."""

from __future__ import annotations

import asyncio
import random

import pytest
from broker_wire import Transport
from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.clients.connection import Connection
from umqtt_broker.core.timers import RESOLUTION, Deadline, Deadlines
from umqtt_testkit import encoder
from umqtt_testkit.virtual_time import run


class Waiting:
    """Records when its deadline fired; `then` is what it does then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.rang: list[float] = []
        self.deadline: Deadline | None = None
        self.cancels: list[Waiting] = []

    def on_deadline(self) -> None:
        self.rang.append(self.loop.time())
        for other in self.cancels:
            assert other.deadline is not None
            other.deadline.cancel(other)


@pytest.mark.tier(0)
def test_a_deadline_rings_once_never_early_and_at_most_its_resolution_late() -> None:
    async def sweep() -> None:
        loop = asyncio.get_running_loop()
        rng = random.Random(5)
        deadlines = Deadlines(loop)
        waits = [rng.uniform(0, 0.8) for _ in range(200)]
        waiting = [Waiting(loop) for _ in waits]
        due = []
        for one, seconds in zip(waiting, waits, strict=True):
            due.append(loop.time() + seconds)
            deadlines.at(due[-1], one)
        assert len(deadlines) <= 0.8 / RESOLUTION + 2
        last = Waiting(loop)
        rung = asyncio.Event()
        last.on_deadline = rung.set
        deadlines.after(0.8 + RESOLUTION, last)
        await rung.wait()
        for one, moment in zip(waiting, due, strict=True):
            assert len(one.rang) == 1
            assert moment <= one.rang[0] <= moment + RESOLUTION
        assert len(deadlines) == 0

    run(sweep())


@pytest.mark.tier(0)
def test_a_cancelled_deadline_never_rings_not_even_by_one_that_rings_with_it() -> None:
    async def cancel() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        due = loop.time() + 0.05
        one, other = Waiting(loop), Waiting(loop)
        other.deadline = deadlines.at(due, one)
        assert deadlines.at(due, other) is other.deadline
        one.cancels = [other]
        rung = asyncio.Event()
        last = Waiting(loop)
        last.on_deadline = rung.set
        deadlines.at(due + RESOLUTION, last)
        await rung.wait()
        assert len(one.rang) == 1 and other.rang == []
        other.deadline.cancel(other)  # has no effect now

    run(cancel())


def test_those_who_go_leave_no_timer_behind() -> None:
    async def churn() -> None:
        async with Broker(BrokerConfig(port=0)) as broker:
            listener = broker.config.all_listeners()[0]
            for number in range(300):
                connection = Connection(broker, listener)
                connection.connection_made(Transport())
                assert len(broker.deadlines) == 1
                connection.data_received(encoder.connect(b"client", keep_alive=number * 7))
                connection.connection_lost(None)
                assert len(broker.deadlines) == 0

    asyncio.run(churn())


def test_subscribers_get_a_message_before_its_publisher_is_acknowledged() -> None:
    class Noting(Transport):
        def write(self, data: bytes) -> None:
            written.append(bytes(data))
            super().write(data)

    written: list[bytes] = []

    async def publish() -> None:
        async with Broker(BrokerConfig(port=0)) as broker:
            ends = []
            for name in (b"publisher", b"subscriber"):
                connection = Connection(broker, broker.config.all_listeners()[0])
                connection.connection_made(Noting())
                connection.data_received(encoder.connect(name))
                ends.append(connection)
            ends[1].data_received(encoder.subscribe(1, (b"a", 1)))
            written.clear()
            ends[0].data_received(encoder.publish(b"a", b"message", 1, 9))
            for connection in ends:
                connection.connection_lost(None)

    asyncio.run(publish())
    assert written == [encoder.publish(b"a", b"message", 1, 1), encoder.acknowledgement(4, 9)]
