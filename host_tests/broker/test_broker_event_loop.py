"""The broker's event loop: which callbacks it calls, what may change meanwhile, and asyncio's own part of it."""

import asyncio
import socket
import sys
import time
from collections.abc import Coroutine

import pytest
from umqtt_broker.transport.event_loop import new_event_loop, readiness
from umqtt_testkit.waiting import WAIT_LIMIT_S

# asyncio's resolution: timers due within it are called at once.
RESOLUTION_S = time.get_clock_info("monotonic").resolution

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no epoll on this system")


async def end_of_turn() -> None:
    """Return once the loop has checked its sockets, and done what it found there."""
    for _ in range(3):
        await asyncio.sleep(0)


def run(scenario: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario)


def test_what_is_removed_by_another_in_the_same_turn_is_not_called() -> None:
    async def scenario() -> None:
        ready = readiness(asyncio.get_running_loop())
        pairs = [socket.socketpair() for _ in range(10)]
        called: list[int] = []

        def on_readable(number: int) -> None:
            called.append(number)
            for one, _ in pairs:
                ready.remove_reader(one.fileno())

        for number, (one, other) in enumerate(pairs):
            ready.add_reader(one.fileno(), lambda number=number: on_readable(number))
            other.send(b"x")
        await end_of_turn()
        assert len(called) == 1
        for pair in pairs:
            for one in pair:
                one.close()

    run(scenario())


def test_reading_and_writing_come_and_go_apart() -> None:
    async def scenario() -> None:
        ready = readiness(asyncio.get_running_loop())
        one, other = socket.socketpair()
        called: list[str] = []
        ready.add_writer(one.fileno(), lambda: (called.append("write"), ready.remove_writer(one.fileno())))
        ready.add_reader(one.fileno(), lambda: called.append("read " + one.recv(9).decode()))
        await end_of_turn()
        assert called == ["write"]
        other.send(b"1")
        await end_of_turn()
        ready.add_writer(one.fileno(), lambda: (called.append("write again"), ready.remove_writer(one.fileno())))
        other.send(b"2")
        await end_of_turn()
        assert called[:2] == ["write", "read 1"] and sorted(called[2:]) == ["read 2", "write again"]
        ready.remove_reader(one.fileno())
        ready.remove_reader(one.fileno())
        other.send(b"3")
        await end_of_turn()
        assert len(called) == 4
        # The descriptor number may belong to another socket by now.
        one.close()
        other.close()

    run(scenario())


def test_a_mistake_in_one_does_not_take_the_turn_of_the_others() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ready, mistakes = readiness(loop), []
        loop.set_exception_handler(lambda _, context: mistakes.append(context["exception"]))
        pairs = [socket.socketpair() for _ in range(3)]
        read: list[bytes] = []

        def on_readable(one: socket.socket) -> None:
            data = one.recv(1)
            if data == b"0":
                raise RuntimeError("a mistake")
            read.append(data)

        for number, (one, other) in enumerate(pairs):
            ready.add_reader(one.fileno(), lambda one=one: on_readable(one))
            other.send(b"%d" % number)
        await end_of_turn()
        assert sorted(read) == [b"1", b"2"] and len(mistakes) == 1
        for pair in pairs:
            for one in pair:
                ready.remove_reader(one.fileno())
                one.close()

    run(scenario())


def test_what_is_asyncios_goes_on_beside_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ready = readiness(loop)
        assert ready is not loop
        called: list[str] = []
        plain, plain_peer = socket.socketpair()
        ready.add_reader(plain.fileno(), lambda: called.append(plain.recv(1).decode()))

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(100_000))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(100):
            plain_peer.send(b"x")
            writer.write(b"y" * 1000)
            await end_of_turn()
        assert await asyncio.wait_for(reader.read(), WAIT_LIMIT_S) == b"y" * 100_000
        assert await asyncio.to_thread(lambda: "woken") == "woken"
        assert "".join(called) == "x" * 100
        writer.close()
        server.close()
        ready.remove_reader(plain.fileno())
        plain.close()
        plain_peer.close()

    run(scenario())


def test_timers_are_in_time_and_nothing_spins_until_they_are_due() -> None:
    async def scenario() -> None:
        # Only timers wake it: they are early by at most its resolution, and it checks once or twice for each.
        selector = readiness(asyncio.get_running_loop())
        look, looks = selector.select, []
        selector.select = lambda timeout: looks.append(timeout) or look(timeout)
        for _ in range(100):
            begin = time.monotonic()
            await asyncio.sleep(0.0005)
            assert time.monotonic() - begin >= 0.0005 - RESOLUTION_S
        assert len(looks) <= 2 * 100

    run(scenario())
