"""The receive loop of one connection: messages are written as durable groups, then acknowledged.

Groups form by themselves: while one group is being synced, the next one arrives in the socket's buffer, so a slow
disk makes larger groups. The collector waits for more messages only if they arrive one by one.
"""

import time
from collections.abc import Callable

from ..errors import MalformedStream
from ..spool.writer import Spool
from .config import CollectorConfig
from .counters import Counters
from .disk_quota import DiskQuota
from .link import Link
from .wire import DISCONNECT_PACKET, split
from .wire5 import DISCONNECT, describe, parse_answer

ANSWER_TIMEOUT_S = 15.0
_TRICKLE = 4
_BLOCK_OVERHEAD = 24


class Connection:
    """A connection that moves messages from `link` to `spool`.

    :param level: protocol level: 4 for MQTT 3.1.1, or 5.
    :param stopping: called between steps; returns True when the connection must end.
    :param wake_fd: file descriptor that becomes readable when a wait must end early.
    """

    def __init__(
        self,
        link: Link,
        spool: Spool,
        quota: DiskQuota,
        config: CollectorConfig,
        counters: Counters,
        *,
        stopping: Callable[[], bool],
        wake_fd: int,
        level: int = 4,
    ) -> None:
        self.level = level
        self._link = link
        self._spool = spool
        self._quota = quota
        self._group_bytes = config.group_bytes
        self._linger_s = config.group_ms / 1000
        self._counters = counters
        self._stopping = stopping
        self._wake_fd = wake_fd
        self._buffer = bytearray()
        self._others: list[bytes] = []
        self._last_group = 0
        self._wanted = 0

    def send(self, data: bytes) -> None:
        """Queue a packet for sending."""
        self._link.queue(data)

    def set_keep_alive(self, seconds: int) -> None:
        """Use the keep-alive time that the broker has chosen, in seconds."""
        self._link.set_keep_alive(seconds)

    def await_packet(self, first: int) -> bytes | None:
        """Wait for a packet whose first byte is `first`, collecting messages meanwhile; None if asked to stop.

        :raises MalformedStream: the broker sent something that is not MQTT, or a packet that is too short.
        :raises TimeoutError: 15 s have passed without it, and nothing else is arriving any more.
        :raises SpoolWriteFailed, QuotaReached, OSError: as :meth:`collect`.
        """
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not self._stopping():
            while self._others:
                packet = self._others.pop(0)
                if packet[0] == first:
                    if len(packet) < 4:
                        raise MalformedStream(f"the broker sent a short packet: {packet.hex()}")
                    return packet
            # While data arrives, the answer may be behind it, delayed by this process or its disk.
            if not self._step() and time.monotonic() > deadline:
                raise TimeoutError(f"the broker did not answer within {ANSWER_TIMEOUT_S:g} s")
        return None

    def collect(self) -> None:
        """Collect messages until asked to stop.

        :raises SpoolWriteFailed: a group could not be made durable; it was not acknowledged.
        :raises QuotaReached: the spool is at a limit; everything received so far is durable and acknowledged.
        :raises MalformedStream: the broker sent something that is not MQTT.
        :raises OSError: the link broke.
        """
        while not self._stopping():
            self._step()
            self._others.clear()  # What is left is PINGRESP, whose arrival is already noted.

    def drain(self) -> None:
        """Collect what has already arrived, for at most 1 s: under a steady stream this would never end."""
        deadline = time.monotonic() + 1.0
        while self._receive_group() and time.monotonic() < deadline:
            pass

    def finish(self) -> None:
        """Send DISCONNECT and close the link, so that the broker gets every acknowledgement."""
        self._link.queue(DISCONNECT_PACKET)
        self._link.finish(ANSWER_TIMEOUT_S)

    def _step(self) -> bool:
        """Wait for input and make one durable, acknowledged group of it; False if nothing arrived."""
        if not self._link.wait(1.0, self._wake_fd):
            return False
        if self._last_group <= _TRICKLE and self._linger_s:
            # If messages arrive one by one, a short wait saves most of the syncs. Under load there is no wait: a
            # broker with a small in-flight window would spend its time waiting for acknowledgements.
            time.sleep(self._linger_s)
        return self._receive_group()

    def _receive_group(self) -> bool:
        """Read until no input is left or the group is full, and write it; False if there was no input."""
        buffer, link = self._buffer, self._link
        before = len(buffer)
        try:
            while (room := before + self._group_bytes - len(buffer)) > 0 and link.receive(buffer, room):
                pass
        except OSError:
            # Process what arrived before the end of the link, such as a refusal; the next read raises again.
            if len(buffer) == before:
                raise
        if len(buffer) == before:
            return False
        if len(buffer) < self._wanted:
            # A large message is incomplete: splitting the whole buffer at each read would take quadratic time.
            return True
        received = split(buffer, self.level)
        self._wanted = received.wanted
        del buffer[: received.consumed]
        self._others += received.others
        self._last_group = received.messages
        if received.messages:
            received_ms = time.time_ns() // 1_000_000
            began = time.perf_counter()
            self._spool.append(received.publishes, received.messages, received_ms, received.level)
            # The group is durable now: only from here on may the broker forget its messages.
            link.queue(received.pubacks)
            counters = self._counters
            counters.append_seconds += time.perf_counter() - began
            counters.messages += received.messages
            counters.bytes += len(received.publishes)
            counters.groups += 1
            counters.redelivered += received.redelivered
            counters.last_message_ms = received_ms
            self._quota.note(len(received.publishes) + _BLOCK_OVERHEAD)
        for packet in received.others:
            if packet[0] == DISCONNECT:
                # The messages before DISCONNECT are already durable.
                code = packet[2] if packet[1] else 0
                raise ConnectionResetError(
                    f"the broker closed the connection: {describe(code, parse_answer(packet, 3))}"
                )
        return True
