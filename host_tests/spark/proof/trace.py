"""No PUBACK leaves the collector before an fdatasync that covers its message, as a kernel trace shows.

A killed process proves nothing here, because the page cache survives it.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from umqtt_testkit.strace import Event, events, strace_command
from umqtt_testkit.waiting import eventually

from . import mistakes
from .chain import Chain
from .fleet import Fleet
from .oracle import read_spool
from .publisher import Publisher

_MESSAGES = 400
_RATE = 1000.0

_CALLS = "read,recvfrom,recvmsg,write,writev,pwrite64,pwritev,sendto,sendmsg,fdatasync,fsync"


class TraceLaw:
    """What a collector's trace shows: the number of `acknowledged` messages, and `violations` in words."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.violations: list[str] = []
        self._line = 0
        self._unfinished: dict[str, tuple[str, int, int, str]] = {}
        # By connection: received bytes not yet cut into packets; by packet identifier: the payload, and when it came.
        self._received: dict[int, bytearray] = {}
        self._waiting: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._version_5: set[int] = set()
        # Writes as (line, descriptor, data); syncs that ended, as (begin, descriptor).
        self._writes: list[tuple[int, int, bytes]] = []
        self._syncs: list[tuple[int, int]] = []

    def read(self, path: Path) -> None:
        """Check a whole trace."""
        for event in events(path):
            self._line = event.line
            if event.result is not None:
                self._end(event)
            # Data counts as sent when the call begins: from then on it may leave.
            elif event.name in ("sendto", "sendmsg", "write", "writev"):
                self._acknowledge(event.descriptor, event.data)

    def _end(self, event: Event) -> None:
        if event.name in ("fdatasync", "fsync"):
            self._syncs.append((event.begin, event.descriptor))
        elif event.name in ("write", "writev", "pwrite64", "pwritev"):
            self._writes.append((self._line, event.descriptor, event.data))
        elif event.name in ("read", "recvfrom", "recvmsg"):
            self._receive(event.descriptor, event.data)

    def _receive(self, descriptor: int, data: bytes) -> None:
        stream = self._received.setdefault(descriptor, bytearray())
        stream += data
        # A connection begins with CONNACK; any other stream that is read is not the broker's.
        if stream[:1] != b"\x20" and (descriptor, 0) not in self._waiting:
            stream.clear()
            return
        self._waiting[descriptor, 0] = (b"", 0)
        while len(stream) >= 2:
            length = shift = 0
            at = 1
            while True:
                if at == len(stream):
                    return
                length |= (stream[at] & 127) << shift
                shift, at = shift + 7, at + 1
                if stream[at - 1] < 128:
                    break
            if len(stream) < at + length:
                return
            if stream[0] >> 4 == 3:
                body = bytes(stream[at : at + length])
                topic = 2 + int.from_bytes(body[:2])
                packet_id = int.from_bytes(body[topic : topic + 2])
                at_payload = topic + 2
                if descriptor in self._version_5:
                    # Its properties take less than 128 bytes.
                    at_payload += 1 + int.from_bytes(body[at_payload : at_payload + 1])
                self._waiting[descriptor, packet_id] = (body[at_payload:], self._line)
            elif stream[0] == 0x20:
                # A CONNACK with properties, or without.
                (self._version_5.add if length > 2 else self._version_5.discard)(descriptor)
            del stream[: at + length]

    def _acknowledge(self, descriptor: int, data: bytes) -> None:
        if descriptor not in self._received:
            return
        for at in range(0, len(data) - 3, 4):
            if data[at : at + 2] != b"\x40\x02":
                return  # not an acknowledgement: CONNECT, SUBSCRIBE, PINGREQ
            payload, since = self._waiting.pop((descriptor, int.from_bytes(data[at + 2 : at + 4])), (b"", 0))
            self.acknowledged += 1
            if not self._is_safe(payload, since):
                self.violations.append(f"line {self._line}: {payload!r}, received in line {since}: not synced")

    def _is_safe(self, payload: bytes, since: int) -> bool:
        """Return whether it was written after line `since`, and that file synced after that."""
        for line, descriptor, data in reversed(self._writes):
            if line < since:
                break
            if payload in data and any(begin > line and of == descriptor for begin, of in self._syncs):
                return True
        return False


class _TracedChain(Chain):
    """A chain whose collector is traced from its start."""

    @property
    def output(self) -> Path:
        """The path of the trace."""
        return self.folder / "trace"

    def collector_command(self) -> list[object]:
        return [*strace_command(self.output, _CALLS), *super().collector_command()]


def trace(folder: Path, seed: object, mistake: str = "") -> TraceLaw:
    """Run a load through a traced collector and return what the trace shows. `folder` is empty."""
    with _TracedChain(folder, random.Random(f"{seed}/trace"), mistake=mistake) as chain:
        chain.start_broker()
        chain.start_collector()
        chain.await_subscribed()
        publisher = Publisher(Fleet("traced", seed), chain.port, "traced", _RATE)
        publisher.start()
        publisher.go.set()
        eventually(lambda: len(publisher.fleet.published.order) >= _MESSAGES, "messages are published")
        publisher.settle()
        wanted = set(publisher.fleet.published.order)
        if mistake != mistakes.ACKNOWLEDGES_EARLY:
            eventually(
                lambda: wanted <= {stored.payload for stored in read_spool(chain.spool / "north")}, "all is stored"
            )
        assert chain.collector is not None
        chain.collector.end()
        _await_end_of(chain.output)
        publisher.close()
    law = TraceLaw()
    law.read(chain.output)
    return law


def _await_end_of(output: Path) -> None:
    """Wait until no strace has the output open, because strace outlives the traced process by a moment."""

    def is_open() -> bool:
        users = subprocess.run(["pgrep", "-x", "strace"], capture_output=True, text=True, check=False).stdout.split()
        return any(str(output) in _command_line(user) for user in users)

    eventually(lambda: not is_open(), "strace has written its output")


def _command_line(process: str) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
