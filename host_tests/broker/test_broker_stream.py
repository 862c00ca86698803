"""The transport of plain sockets: what a protocol is told, and that no byte is lost, whatever the socket does."""

import asyncio
import errno
import random
import resource
import socket
from collections.abc import Awaitable, Callable

import pytest
from umqtt_broker.stream import StreamServer, StreamTransport


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
            await asyncio.wait_for(scenario(accepted[0], peer), 20)
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
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.create_connection(listening.getsockname())
        try:
            # As many as are open: not one more.
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            turns = 0
            end = loop.time() + 0.05
            while loop.time() < end:
                await asyncio.sleep(0)
                turns += 1
                if server._again is not None:
                    break
            assert server._again is not None and not made
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            end = loop.time() + 5
            while not made and loop.time() < end:
                await asyncio.sleep(0.01)
            assert len(made) == 1
            made[0].transport.abort()
            await made[0].lost
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            server.close()
            client.close()
            listening.close()

    asyncio.run(scenario())
