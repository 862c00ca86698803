"""The transport of plain sockets: what a protocol is told, and that no byte is lost, whatever the socket does."""

import asyncio
import errno
import gc
import random
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import pytest
from patience import PATIENCE
from umqtt_broker.event_loop import new_event_loop
from umqtt_broker.stream import StreamServer, StreamTransport


@pytest.fixture(params=["the broker's", "asyncio's"], autouse=True)
def event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every law holds in the broker's event loop and in any other."""
    new = new_event_loop if request.param == "the broker's" else asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "run", lambda main: _run(main, new))


def _run(main: Coroutine[object, object, None], new: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new) as runner:
        runner.run(main)


class Told(asyncio.Protocol):
    """Writes down what it is told, and what it reads."""

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

        server = StreamServer(loop, listening, new_protocol, lambda: False)
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        try:
            await loop.sock_connect(peer, listening.getsockname())
            while not accepted:
                await asyncio.sleep(0)
            await asyncio.wait_for(scenario(accepted[0], peer), PATIENCE)
        finally:
            server.close()
            if accepted:
                accepted[0].transport.abort()
            listening.close()
            peer.close()
            await asyncio.sleep(0)

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
        # One for one, and the end last: nothing is written to a protocol that believes it is congested.
        assert told.told[:-1] == ["pause", "resume"] * (len(told.told) // 2) and told.told[-1] == "lost"

    run(scenario)


def test_what_arrives_is_read_whole_unless_reading_is_paused():
    data = random.Random(1).randbytes(600_000)

    async def scenario(told: Told, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        told.transport.pause_reading()
        sending = loop.create_task(loop.sock_sendall(peer, data))
        await asyncio.sleep(0.05)
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
        await asyncio.sleep(0)
        assert told.told == ["lost"]

    run(scenario)


def test_an_error_while_writing_is_told_after_the_caller_is_done():
    async def scenario(told: Told, peer: socket.socket) -> None:
        def fail(data: bytes) -> int:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")

        told.transport._send = fail
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
                        told.transport = _[0]  # type: ignore
                    raise KeyError("a mistake")

                monkeypatch.setattr(told, where, fail)
            return told

        server = StreamServer(loop, listening, new_protocol, lambda: False)
        peers = [socket.create_connection(listening.getsockname()) for _ in range(2)]
        try:
            while len(accepted) < 2:
                await asyncio.sleep(0)
            if where == "resume_writing":
                accepted[0].transport.write(bytes(5_000_000))
            for peer in peers:
                peer.setblocking(False)
                peer.send(b"x")
            if where == "resume_writing":
                reading = loop.create_task(_read(peers[0], 5_000_000))
            assert isinstance(await asyncio.wait_for(accepted[0].lost, PATIENCE), KeyError)
            assert "a mistake of the broker ends the connection" in caplog.text and "KeyError" in caplog.text
            while not accepted[1].data:
                await asyncio.sleep(0)
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
    """A listening socket whose accept() fails: errors[0] until it is taken away."""

    errors: tuple[int, ...] = ()
    accepts = 0

    def accept(self):  # type: ignore
        self.accepts += 1
        if self.errors:
            raise OSError(self.errors[0], "no")
        return super().accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EPERM, errno.EINVAL])
def test_an_accept_that_fails_is_tried_again_later_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
):
    monkeypatch.setattr("umqtt_broker.stream._ACCEPT_AGAIN", 0.02)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = Refusing()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        listening.errors = (number,)
        made: list[Told] = []

        def new_protocol() -> Told:
            made.append(Told())
            return made[-1]

        server = StreamServer(loop, listening, new_protocol, lambda: True)
        client = socket.create_connection(listening.getsockname())
        try:
            begin = loop.time()
            while listening.accepts < 10:
                await asyncio.sleep(0)
            # Not at once: each after a pause.
            assert loop.time() - begin > 9 * 0.02 - 0.001
            listening.errors = ()
            while not made:
                await asyncio.sleep(0.001)
            told = [record.message for record in caplog.records]
            assert [message.partition(" at ")[0] for message in told] == ["cannot accept clients", "accepting clients"]
            assert ("raise the limit of open files" in told[0]) == (number == errno.EMFILE)
            made[0].transport.abort()
            await made[0].lost
        finally:
            server.close()
            client.close()
            listening.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_out_of_file_descriptors_accepting_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("umqtt_broker.stream._ACCEPT_AGAIN", 0.1)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        made: list[Told] = []

        def new_protocol() -> Told:
            made.append(Told())
            return made[-1]

        server = StreamServer(loop, listening, new_protocol, lambda: True)
        # What other tests have left open would be closed at any moment, and make room for one more.
        gc.collect()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.create_connection(listening.getsockname())
        try:
            # As many as are open: not one more.
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            while server._again is None:
                await asyncio.sleep(0)
            assert not made
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            while not made:
                await asyncio.sleep(0.01)
            assert len(made) == 1
            made[0].transport.abort()
            await made[0].lost
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            server.close()
            client.close()
            listening.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_connection_that_is_not_read_and_has_failed_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(told: Told, peer: socket.socket) -> None:
        told.transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        selector = asyncio.get_running_loop()._selector  # type: ignore
        select, turns = selector.select, 0

        def count(timeout: float | None) -> object:
            nonlocal turns
            turns += 1
            return select(timeout)

        monkeypatch.setattr(selector, "select", count)
        await asyncio.sleep(0.3)
        assert turns < 10, "the socket is reported again and again"
        told.transport.resume_reading()
        assert isinstance(await told.lost, ConnectionResetError)

    run(scenario)
