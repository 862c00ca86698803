"""The transport of plain sockets: its calls of the protocol, and that no byte is lost, whatever the socket does."""

import asyncio
import errno
import gc
import random
import resource
import select
import selectors
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import pytest
from umqtt_broker.transport.event_loop import new_event_loop, readiness
from umqtt_broker.transport.stream import StreamServer, StreamTransport
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually_async


@pytest.fixture(params=["the broker's", "asyncio's"], autouse=True)
def selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[selectors.BaseSelector]:
    """Run every test in the broker's event loop and in asyncio's. Provide the selectors of the loops."""
    used: list[selectors.BaseSelector] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        if request.param == "the broker's":
            loop = new_event_loop()
            used.append(readiness(loop))
            return loop
        used.append(selectors.DefaultSelector())
        return asyncio.SelectorEventLoop(used[-1])

    def run_in_new_loop(main: Coroutine[object, object, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main)

    monkeypatch.setattr(asyncio, "run", run_in_new_loop)
    return used


# Longer than the broker's pause before it tries to accept again.
PAUSE_S = 1.1


async def end_of_turn() -> None:
    """Return once the loop has checked its sockets, and done what it found there."""
    for _ in range(3):
        await asyncio.sleep(0)


class Told(asyncio.Protocol):
    """Records the calls it gets, and the data it reads."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.data = b""
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, StreamTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.lost.set_result(exc)


def run(scenario: Callable[[Told, socket.socket], Awaitable[None]]) -> None:
    """Run `scenario` with a protocol, and the peer's end of its connection."""

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        accepted: list[Told] = []

        def new_protocol() -> Told:
            accepted.append(Told())
            return accepted[-1]

        server = StreamServer(loop, listening, new_protocol)
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        try:
            await loop.sock_connect(peer, listening.getsockname())
            await eventually_async(lambda: accepted)
            await asyncio.wait_for(scenario(accepted[0], peer), WAIT_LIMIT_S)
        finally:
            server.close()
            if accepted:
                accepted[0].transport.abort()
            listening.close()
            peer.close()
            if accepted:
                await eventually_async(accepted[0].lost.done)

    asyncio.run(connect())


async def _read(peer: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(peer, 4096)
        if not piece:
            break
        data += piece
    return data


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_arrives_whole_and_in_order_however_little_the_socket_takes(seed: int):
    chance = random.Random(seed)
    pieces = [chance.randbytes(chance.choice((1, 100, 5_000, 300_000))) for _ in range(20)]

    async def scenario(told: Told, peer: socket.socket) -> None:
        sender = told.transport.get_extra_info("socket")
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        told.transport.set_write_buffer_limits(high=50_000)
        for piece in pieces:
            told.transport.write(piece)
        assert told.transport.get_write_buffer_size() > 50_000 or sum(map(len, pieces)) < 60_000
        told.transport.close()
        assert await _read(peer, sum(map(len, pieces)) + 1) == b"".join(pieces)
        assert await told.lost is None
        # One resume per pause, and the end last: a protocol that believes it is congested writes nothing.
        assert told.told[:-1] == ["pause", "resume"] * (len(told.told) // 2) and told.told[-1] == "lost"

    run(scenario)


def test_what_arrives_is_read_whole_unless_reading_is_paused():
    data = random.Random(1).randbytes(600_000)

    async def scenario(told: Told, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        told.transport.pause_reading()
        sending = loop.create_task(loop.sock_sendall(peer, data))
        there = told.transport.get_extra_info("socket")
        await eventually_async(lambda: select.select([there], [], [], 0)[0])
        await end_of_turn()
        assert told.data == b"" and not told.transport.is_reading()
        told.transport.resume_reading()
        await sending
        peer.shutdown(socket.SHUT_WR)
        assert await told.lost is None
        assert told.data == data

    run(scenario)


def test_a_reset_ends_the_connection_once_and_says_why():
    async def scenario(told: Told, peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        error = await told.lost
        assert isinstance(error, OSError) and error.errno == errno.ECONNRESET
        told.transport.write(b"too late")
        told.transport.abort()
        told.transport.close()
        await end_of_turn()
        assert told.told == ["lost"]

    run(scenario)


def test_an_error_while_writing_is_told_after_the_caller_is_done():
    async def scenario(told: Told, peer: socket.socket) -> None:
        told.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        told.transport.write(b"x")
        assert told.told == [] and told.transport.is_closing()
        assert isinstance(await told.lost, BrokenPipeError)

    run(scenario)


def test_aborting_sends_nothing_more_and_closing_sends_everything():
    async def scenario(told: Told, peer: socket.socket) -> None:
        told.transport.write(bytes(5_000_000))
        told.transport.abort()
        assert await told.lost is None
        assert len(await _read(peer, 5_000_000)) < 5_000_000

    run(scenario)


@pytest.mark.parametrize("where", ["connection_made", "data_received", "resume_writing"])
def test_a_mistake_of_the_broker_ends_that_connection_alone_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, where: str
):
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        accepted: list[Told] = []

        def new_protocol() -> Told:
            told = Told()
            accepted.append(told)
            if len(accepted) == 1:

                def fail(*_: object) -> None:
                    if where == "connection_made":
                        told.transport = _[0]
                    raise KeyError("a mistake")

                monkeypatch.setattr(told, where, fail)
            return told

        server = StreamServer(loop, listening, new_protocol)
        peers = [socket.create_connection(listening.getsockname()) for _ in range(2)]
        try:
            await eventually_async(lambda: len(accepted) == 2)
            if where == "resume_writing":
                accepted[0].transport.write(bytes(5_000_000))
            for peer in peers:
                peer.setblocking(False)
                peer.send(b"x")
            if where == "resume_writing":
                reading = loop.create_task(_read(peers[0], 5_000_000))
            assert isinstance(await asyncio.wait_for(accepted[0].lost, WAIT_LIMIT_S), KeyError)
            assert "a defect of the broker ends the connection" in caplog.text and "KeyError" in caplog.text
            await eventually_async(lambda: accepted[1].data)
            with suppress(ConnectionResetError):  # the socket is closed
                if where == "resume_writing":
                    await reading
                else:
                    assert await loop.sock_recv(peers[0], 1) == b""
            accepted[1].transport.abort()
            await accepted[1].lost
        finally:
            server.close()
            for each in (*peers, listening):
                each.close()

    asyncio.run(scenario())


class Refusing(socket.socket):
    """A listening socket whose accept() fails with errors[0] as long as there is one."""

    errors: tuple[int, ...] = ()
    accepts = 0

    def accept(self):
        self.accepts += 1
        if self.errors:
            raise OSError(self.errors[0], "no")
        return super().accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EPERM, errno.EINVAL])
def test_an_accept_that_fails_is_tried_again_later_and_said_once(caplog: pytest.LogCaptureFixture, number: int):
    async def scenario() -> None:
        loop, ahead = asyncio.get_running_loop(), 0
        machine_time = loop.time
        loop.time = lambda: machine_time() + ahead
        listening = Refusing()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        listening.errors = (number,)
        made: list[Told] = []

        def new_protocol() -> Told:
            made.append(Told())
            return made[-1]

        server = StreamServer(loop, listening, new_protocol)
        client = socket.create_connection(listening.getsockname())
        try:
            for tries in range(1, 10):
                await eventually_async(lambda tries=tries: listening.accepts == tries)
                # Not at once, although the socket stays readable: each try comes after a pause.
                await end_of_turn()
                assert listening.accepts == tries
                ahead += PAUSE_S
            listening.errors = ()
            await eventually_async(lambda: made)
            told = [record.message for record in caplog.records]
            assert [message.partition(" at ")[0] for message in told] == ["cannot accept clients", "accepting clients"]
            assert ("raise the limit of open files" in told[0]) == (number == errno.EMFILE)
            made[0].transport.abort()
            await made[0].lost
        finally:
            server.close()
            client.close()
            listening.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_LIMIT_S))


def test_out_of_file_descriptors_accepting_waits_and_goes_on(caplog: pytest.LogCaptureFixture):
    async def scenario() -> None:
        loop, ahead = asyncio.get_running_loop(), 0
        machine_time = loop.time
        loop.time = lambda: machine_time() + ahead
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        made: list[Told] = []

        def new_protocol() -> Told:
            made.append(Told())
            return made[-1]

        server = StreamServer(loop, listening, new_protocol)
        # Sockets that other tests left open could be closed at any moment, and make room for one more.
        gc.collect()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.create_connection(listening.getsockname())
        try:
            # As many as are open, and not one more.
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            await eventually_async(lambda: "cannot accept clients" in caplog.text)
            assert not made
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            ahead += PAUSE_S
            await eventually_async(lambda: made)
            assert len(made) == 1
            made[0].transport.abort()
            await made[0].lost
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            server.close()
            client.close()
            listening.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_LIMIT_S))


def test_a_connection_that_is_not_read_and_has_failed_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, selector: list[selectors.BaseSelector]
) -> None:
    async def scenario(told: Told, peer: socket.socket) -> None:
        told.transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        look, looks = selector[-1].select, 0

        def count(timeout: float | None = None) -> object:
            nonlocal looks
            looks += 1
            return look(timeout)

        monkeypatch.setattr(selector[-1], "select", count)
        # Nothing is due earlier: a loop that still watches the socket would check it some thousand times until then.
        await asyncio.sleep(0.02)
        assert looks < 10, "the socket is reported again and again"
        told.transport.resume_reading()
        assert isinstance(await told.lost, ConnectionResetError)

    run(scenario)
