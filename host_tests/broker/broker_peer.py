"""Shared by the broker's tests: a synchronous MQTT peer that hides nothing, and brokers in a thread or a process.

The peer sends and returns packets one at a time and acknowledges only when told to, so that a test decides what is
unacknowledged at which moment. It is independent of the broker's code.
"""

import asyncio
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.transport.event_loop import new_event_loop
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK
from umqtt_testkit.redis_server import RedisServer
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

Result = TypeVar("Result")


class Packet(NamedTuple):
    """A packet from the broker. The last six fields are for PUBLISH only; packet_id is for every packet with one."""

    kind: int
    body: bytes
    packet_id: int = 0
    topic_name: bytes = b""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False


def decode(first_byte: int, body: bytes) -> Packet:
    """Decode a packet."""
    kind = first_byte >> 4
    if kind != PUBLISH:
        return Packet(kind, body, struct.unpack(">H", body[:2])[0] if len(body) >= 2 else 0)
    size = struct.unpack(">H", body[:2])[0]
    at = 2 + size
    qos, packet_id = first_byte >> 1 & 3, 0
    if qos:
        packet_id = struct.unpack(">H", body[at : at + 2])[0]
    return Packet(
        kind,
        body,
        packet_id,
        body[2 : 2 + size],
        body[at + (2 if qos else 0) :],
        qos,
        bool(first_byte & 1),
        bool(first_byte & 8),
    )


class Closed(Exception):
    """The broker closed the connection."""


class Peer:
    """A client that does nothing automatically. Every wait ends with an exception after WAIT_LIMIT_S.

    sent_to: bytes that all peers together have sent to a port.
    """

    sent_to: ClassVar[Counter[int]] = Counter()

    def __init__(
        self, port: int = 0, *, receive_buffer: int | None = None, connected: socket.socket | None = None
    ) -> None:
        self.socket = connected or socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connected is None:
            self.socket.connect(("127.0.0.1", port))
        self.port = port
        self._buffer = bytearray()
        self._next_id = 0
        self.session_present = False

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(
        self,
        client_id: bytes,
        *,
        clean_session: bool = True,
        keep_alive: int = 0,
        will: tuple[bytes, bytes, int, bool] | None = None,
    ) -> bool:
        """Connect, expect to be accepted, and return session_present."""
        self.send(encoder.connect(client_id, clean_session=clean_session, keep_alive=keep_alive, will=will))
        packet = self.receive()
        assert packet.kind == CONNACK and packet.body[1] == 0, packet
        self.session_present = bool(packet.body[0])
        return self.session_present

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        Peer.sent_to[self.port] += len(data)
        self.socket.sendall(data)

    def has_received(self) -> bool:
        """Return whether unread bytes, or the end of the connection, have come."""
        return bool(self._buffer or select.select([self.socket], [], [], 0)[0])

    def assert_silent(self) -> None:
        """Assert that nothing has come.

        It proves something only after the possible causes are done: see wait_read().
        """
        assert not self.has_received(), self.receive()

    def next_id(self) -> int:
        """Return a packet identifier that was not used before."""
        self._next_id = self._next_id % 65535 + 1
        return self._next_id

    def subscribe(self, topic_filter: bytes, qos: int = 0) -> int:
        """Subscribe and return the return code. The SUBACK must be the next packet."""
        packet_id = self.next_id()
        self.send(encoder.subscribe(packet_id, (topic_filter, qos)))
        packet = self.receive()
        assert packet.kind == SUBACK and packet.packet_id == packet_id, packet
        return packet.body[2]

    def publish(self, topic_name: bytes, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Publish, and return once the broker has completed it. No other packet may come in between."""
        packet_id = self.next_id() if qos else 0
        self.send(self.publish_packet(topic_name, payload, qos, packet_id, retain=retain))
        if qos == 0:
            assert self.flush() == []
        elif qos == 1:
            self.expect(PUBACK, packet_id)
        elif qos == 2:
            self.expect(PUBREC, packet_id)
            self.send(encoder.acknowledgement(PUBREL, packet_id))
            self.expect(PUBCOMP, packet_id)

    def publish_packet(
        self, topic_name: bytes, payload: bytes, qos: int, packet_id: int, *, retain: bool = False, dup: bool = False
    ) -> bytes:
        """Return a PUBLISH."""
        return encoder.publish(topic_name, payload, qos, packet_id, retain=retain, dup=dup)

    def expect(self, kind: int, packet_id: int | None = None) -> Packet:
        """Return the next packet, which must be of this kind."""
        packet = self.receive()
        assert packet.kind == kind and packet_id in (None, packet.packet_id), (kind, packet_id, packet)
        return packet

    def receive(self) -> Packet:
        """Return the next packet. Raises Closed, or TimeoutError."""
        while (packet := self._take()) is None:
            try:
                data = self.socket.recv(65536)
            except ConnectionError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._buffer += data
        return packet

    def receive_all(self) -> list[Packet]:
        """Return the next packet, and those that came with it."""
        return [self.receive(), *self.received_already()]

    def received_already(self) -> list[Packet]:
        """Return the packets that came with an earlier one: the socket does not become readable for them."""
        packets = []
        while (packet := self._take()) is not None:
            packets.append(packet)
        return packets

    def receive_message(self, *, acknowledge: bool = True) -> Packet:
        """Return the next PUBLISH, acknowledged at once unless told not to; PUBRELs are answered meanwhile."""
        while (packet := self.receive()).kind != PUBLISH:
            assert packet.kind == PUBREL, packet
            self.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
        if acknowledge and packet.qos:
            self.send(encoder.acknowledgement(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        return packet

    def flush(self) -> list[Packet]:
        """Return every packet before the answer to a PINGREQ, which is all the broker has sent so far."""
        self.send(encoder.pingreq())
        packets = []
        while (packet := self.receive()).kind != PINGRESP:
            packets.append(packet)
        return packets

    def wait_closed(self) -> list[Packet]:
        """Wait for the broker to close the connection. Returns what came before."""
        packets = []
        try:
            while True:
                packets.append(self.receive())
        except Closed:
            return packets

    def disconnect(self) -> None:
        """Send DISCONNECT and wait for the end."""
        self.send(encoder.disconnect())
        self.wait_closed()
        self.socket.close()

    def close(self) -> None:
        """Drop the connection without a DISCONNECT."""
        self.socket.close()

    def reset(self) -> None:
        """Drop the connection with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _take(self) -> Packet | None:
        buffer = self._buffer
        length = shift = 0
        for at in range(1, 5):
            if at >= len(buffer):
                return None
            length |= (buffer[at] & 127) << shift
            shift += 7
            if buffer[at] < 128:
                assert buffer[at] or at == 1, "a remaining length that is longer than it need be [MQTT-1.5.5-1]"
                end = at + 1 + length
                if len(buffer) < end:
                    return None
                body = bytes(buffer[at + 1 : end])
                first_byte = buffer[0]
                del buffer[:end]
                return decode(first_byte, body)
        raise AssertionError("remaining length of five bytes")


class BrokerThread:
    """A broker in an event loop of its own thread. view, stats: the broker's.

    Its clock follows the machine's, stands still after stop_clock(), and advances when a test says so: advance().
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker")
        self._ahead_s = 0.0
        self._stopped_at: float | None = None

    def __enter__(self) -> "BrokerThread":
        self._thread.start()
        assert self._ready.wait(WAIT_LIMIT_S)
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._new_event_loop) as runner:
            runner.run(self._main())

    def _new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        self._machine_time = loop.time
        loop.time = self._time
        return loop

    def _time(self) -> float:
        return (self._machine_time() if self._stopped_at is None else self._stopped_at) + self._ahead_s

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with Broker(self._config) as self.broker:
                self.port = self.broker.port
                self.view, self.stats = self.broker.view, self.broker.stats
                self._sent_before = Peer.sent_to[self.port]
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()

    def call(self, function: Callable[[], Result]) -> Result:
        """Run `function` in the broker's loop and return its result."""

        async def run() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_LIMIT_S)

    def stop_clock(self) -> None:
        """Let the broker's clock stand still."""
        self._stopped_at = self.call(self._machine_time)

    def set_ahead(self, seconds: float) -> None:
        """Set the broker's clock ahead; called within its event loop."""
        self._ahead_s += seconds

    def advance(self, seconds: float) -> None:
        """Set the broker's clock ahead, and return once everything due by then is done."""
        self.call(lambda: self.set_ahead(seconds))
        # What is due runs in the turn that begins this call; the call itself ends in the next one.
        self.call(lambda: None)

    def wait_read(self) -> None:
        """Wait until the broker has read every byte that peers sent it, and its event loop has had a turn since."""
        self.wait_until(lambda: self.stats.bytes_in == Peer.sent_to[self.port] - self._sent_before)
        self.call(lambda: None)

    def wait_until(self, condition: Callable[[], Result]) -> Result:
        """Wait until `condition`, evaluated in the broker's loop, holds; return its result."""
        return eventually(lambda: self.call(condition))


# The fixture start_broker: starts a broker with the given settings.
StartBroker = Callable[..., BrokerThread]
StartRedis = Callable[..., RedisServer]


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m umqtt_broker` until it ends."""
    command = [sys.executable, "-m", "umqtt_broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False)


class BrokerProcess:
    """A process of `python -m umqtt_broker` with a store, to be stopped or killed."""

    def __init__(self, store: Path | str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umqtt_broker", "-p", "0", "--store", str(store), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on 127.0.0.1:"):
            raise AssertionError(self.process.communicate())
        self.port = int(line.rpartition(":")[2])

    def __enter__(self) -> "BrokerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._close()

    def kill(self) -> None:
        """Send SIGKILL: nothing of the process can run any more."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_LIMIT_S)

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM. Returns the exit code and standard error."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=WAIT_LIMIT_S)
        return self.process.returncode, errors

    def _close(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
