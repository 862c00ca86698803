"""The collector: MQTT messages in, a durable spool out, acknowledgements last.

A process of its own, never a thread of a Spark job: queries come and go, the broker's session must not. ::

    python -m spark_ingest.collector --broker mqtt://127.0.0.1:1883 --spool spool --name north

prints ``subscribed north`` on standard output once the session is subscribed, and runs until SIGTERM or
SIGINT: then it takes what has already been received, syncs, acknowledges, disconnects and exits with 0.
Killed violently it loses nothing either: what it had not acknowledged, the broker sends again (and the
reading's identity deduplicates).

Groups form by themselves: while one group is being synced the next one arrives in the socket's buffer, so a
slow disk makes larger groups. Only under a trickle of single messages does the collector wait, for 5 ms.

``--status FILE`` has these keys:

=====================  ===================================================================================
name, broker, spool    what it was started with; `spool` is the UUID
connected, subscribed  true or false, now
messages, bytes        PUBLISH packets made durable since the start, and their bytes
groups                 blocks written, each with one sync
redelivered            messages that came with DUP set
connects, lost_links   connections made, and those that ended without being asked to
malformed_streams      connections closed because the broker sent bytes that are not MQTT
refusals               CONNACK or SUBACK said no
sessions_lost          the broker had forgotten the session: what it held for it is gone
spool_errors           appends that failed; none of their messages was acknowledged
truncated_bytes        torn tail cut off at the start
segment, position      the spool's durable position
last_error             the newest error line, or null
updated_ms             Unix milliseconds of this status
=====================  ===================================================================================
"""

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .backoff import Backoff
from .durable import replace_file
from .errors import BrokerRefused, IngestError, MalformedStream, SpoolWriteFailed, UsageError
from .link import Link, parse_broker
from .spool import DEFAULT_SEGMENT_BYTES, Spool
from .status import StatusFile
from .wire import (
    CONNACK,
    CONNACK_REFUSALS,
    DISCONNECT_PACKET,
    SUBACK,
    SUBACK_FAILURE,
    UNSUBACK,
    connect_packet,
    split,
    subscribe_packet,
    unsubscribe_packet,
)

DEFAULT_TOPIC_FILTERS = ("fleet/+/telemetry",)
_GROUP_BYTES = 1 << 20
_ANSWER_TIMEOUT_S = 10.0
_STABLE_AFTER_S = 10.0
_UNSENT_LIMIT = 1 << 16
_TRICKLE = 4
_LINGER_S = 0.005
_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2


@dataclass(frozen=True)
class CollectorConfig:
    """What a collector is started with. `longest_delay_s` bounds the wait between attempts to connect."""

    broker: str
    spool: Path
    name: str
    topic_filters: tuple[str, ...] = DEFAULT_TOPIC_FILTERS
    keep_alive: int = 60
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    longest_delay_s: float = 128.0

    @property
    def client_id(self) -> str:
        """Stable, so that the broker keeps one session for this collector for ever."""
        return f"umqtt-collector-{self.name}"


@dataclass
class Counters:
    """See the module's table of status keys."""

    connected: bool = False
    subscribed: bool = False
    messages: int = 0
    bytes: int = 0
    groups: int = 0
    redelivered: int = 0
    connects: int = 0
    lost_links: int = 0
    malformed_streams: int = 0
    refusals: int = 0
    sessions_lost: int = 0
    spool_errors: int = 0
    last_error: str | None = None


@dataclass
class _Connection:
    """The life of one connection."""

    link: Link
    last_group: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    others: list[bytes] = field(default_factory=list)


class Collector:
    """Runs until :meth:`stop`; see the module.

    :param on_subscribed: called each time the session is known to be subscribed.
    :param report: takes one line for a person; default standard error.
    """

    def __init__(
        self,
        config: CollectorConfig,
        spool: Spool,
        *,
        on_subscribed: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.config = config
        self.counters = Counters()
        self._spool = spool
        self._on_subscribed = on_subscribed
        self._report = report
        self._host, self._port = parse_broker(config.broker)
        self._backoff = Backoff(config.longest_delay_s)
        self._stopping = False
        # A byte here ends any wait: from stop(), or from a signal through signal.set_wakeup_fd.
        self._wake, self.wakeup_socket = socket.socketpair()
        self._wake.setblocking(False)
        self.wakeup_socket.setblocking(False)

    def stop(self) -> None:
        """Ask :meth:`run` to drain and return; may be called from a signal handler or another thread."""
        self._stopping = True
        # Full of such bytes: the loop will wake up all the same.
        with contextlib.suppress(BlockingIOError):
            self.wakeup_socket.send(b"\0")

    def status(self) -> dict[str, object]:
        """The keys of the status file."""
        durable = self._spool.durable
        return {
            "name": self.config.name,
            "broker": self.config.broker,
            "spool": durable.spool,
            **asdict(self.counters),
            "truncated_bytes": self._spool.truncated_bytes,
            "segment": durable.segment,
            "position": durable.position,
        }

    def run(self) -> None:
        """Collect until :meth:`stop`. Network and disk errors are reported, counted and retried."""
        while not self._stopping:
            delay = self._one_connection()
            self.counters.connected = self.counters.subscribed = False
            if not self._stopping and delay:
                self._sleep(delay)
        self._wake.close()
        self.wakeup_socket.close()

    def _one_connection(self) -> float:
        """Connect, collect until the link ends; the seconds to wait before the next attempt."""
        link = None
        counters = self.counters
        started = time.monotonic()
        refused = False
        try:
            link = Link(self._host, self._port, keep_alive=self.config.keep_alive)
            counters.connects += 1
            self._collect(_Connection(link))
            return 0.0
        except MalformedStream as error:
            counters.malformed_streams += 1
            self._say(str(error))
        except BrokerRefused as error:
            counters.refusals += 1
            # 3 (server unavailable) passes by itself; the others last until somebody changes something.
            refused = error.return_code != 3
            self._say(str(error))
        except SpoolWriteFailed as error:
            counters.spool_errors += 1
            self._say(str(error))
        except OSError as error:
            counters.lost_links += 1
            self._say(f"no link to {self.config.broker}: {error.strerror or error}; trying again")
        finally:
            if link is not None:
                link.close()
        if refused:
            return self._backoff.after_refusal()
        if counters.subscribed and time.monotonic() - started >= _STABLE_AFTER_S:
            self._backoff.reset()
        return self._backoff.next_delay()

    def _collect(self, connection: _Connection) -> None:
        link = connection.link
        link.queue(connect_packet(self.config.client_id, keep_alive=self.config.keep_alive))
        connack = self._await_packet(connection, CONNACK)
        if connack is None:
            return
        session_present, return_code = connack[2] & 1, connack[3]
        if return_code:
            reason = CONNACK_REFUSALS.get(return_code, "unknown reason")
            raise BrokerRefused(f"{self.config.broker} refused the connection: {reason} ({return_code})", return_code)
        self.counters.connected = True
        if not self._subscribe(connection, bool(session_present)):
            return
        self.counters.subscribed = True
        self._on_subscribed()
        while not self._stopping:
            self._step(connection)
            connection.others.clear()  # PINGRESP: its arrival was all it had to say.
        # Take what has already arrived, within reason: under a steady stream this would never end.
        deadline = time.monotonic() + 1.0
        while self._receive_group(connection) and time.monotonic() < deadline:
            pass
        link.queue(DISCONNECT_PACKET)
        link.finish(_ANSWER_TIMEOUT_S)

    def _subscribe(self, connection: _Connection, session_present: bool) -> bool:
        """Make the session's subscriptions equal the wanted ones; False when asked to stop meanwhile."""
        memory = self.config.spool / self.config.name / "subscription.json"
        granted = set(json.loads(memory.read_bytes())) if memory.exists() else set()
        wanted = set(self.config.topic_filters)
        if granted and not session_present:
            self.counters.sessions_lost += 1
            self._say(
                f"{self.config.broker} had forgotten the session {self.config.client_id}: what it held for "
                "this collector are lost there; check the broker's persistence and session expiry"
            )
        if not session_present:
            granted = set()
        elif granted == wanted:
            return True
        if surplus := sorted(granted - wanted):
            connection.link.queue(unsubscribe_packet(_UNSUBSCRIBE_ID, surplus))
            if self._await_packet(connection, UNSUBACK) is None:
                return False
        filters = sorted(wanted)
        connection.link.queue(subscribe_packet(_SUBSCRIBE_ID, filters))
        suback = self._await_packet(connection, SUBACK)
        if suback is None:
            return False
        if len(suback) != 4 + len(filters) + (len(filters) > 125):
            raise MalformedStream(f"the broker answered {len(filters)} topic filters with {len(suback)} bytes")
        for topic_filter, return_code in zip(filters, suback[-len(filters) :], strict=True):
            if return_code == SUBACK_FAILURE:
                raise BrokerRefused(
                    f"{self.config.broker} refused the subscription to {topic_filter}: "
                    f"allow it to {self.config.client_id}",
                    return_code,
                )
            if return_code == 0:
                raise BrokerRefused(
                    f"{self.config.broker} granted only QoS 0 for {topic_filter}, which may lose messages",
                    return_code,
                )
        replace_file(memory, json.dumps(filters).encode())
        return True

    def _await_packet(self, connection: _Connection, first: int) -> bytes | None:
        """The next packet of a kind; messages before it are collected. None: asked to stop."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while not self._stopping:
            while connection.others:
                packet = connection.others.pop(0)
                if packet[0] == first:
                    if len(packet) < 4:
                        raise MalformedStream(f"the broker sent a short packet: {packet.hex()}")
                    return packet
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker did not answer within {_ANSWER_TIMEOUT_S:g} s")
            self._step(connection)
        return None

    def _step(self, connection: _Connection) -> None:
        """Wait for input and turn what is there into one durable, acknowledged group."""
        link = connection.link
        if not link.wait(1.0, self._wake.fileno()):
            return
        if connection.last_group <= _TRICKLE:
            # Under a trickle, a moment's wait saves most of the syncs. Not under load: a broker with a
            # small in-flight window would then wait for acknowledgements all the time.
            time.sleep(_LINGER_S)
        # A broker that does not read its acknowledgements gets no more of our memory.
        if link.unsent < _UNSENT_LIMIT:
            self._receive_group(connection)

    def _receive_group(self, connection: _Connection) -> bool:
        """Read until nothing is there or the group is full; False when nothing was there at all."""
        buffer = connection.buffer
        before = len(buffer)
        while len(buffer) < before + _GROUP_BYTES and connection.link.receive(buffer):
            pass
        if len(buffer) == before:
            return False
        received = split(buffer)
        del buffer[: received.consumed]
        connection.others += received.others
        connection.last_group = received.messages
        if received.messages:
            self._spool.append(received.publishes, received.messages, time.time_ns() // 1_000_000)
            # Durable from here on: now, and not a moment earlier, the broker may forget them.
            connection.link.queue(received.pubacks)
            counters = self.counters
            counters.messages += received.messages
            counters.bytes += len(received.publishes)
            counters.groups += 1
            counters.redelivered += received.redelivered
        return True

    def _say(self, line: str) -> None:
        self.counters.last_error = line
        self._report(f"collector {self.config.name}: {line}")

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if select.select([self._wake], [], [], left)[0]:
                self._wake.recv(4096)


def _arguments(argv: Sequence[str] | None) -> tuple[CollectorConfig, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ingest.collector", description="MQTT messages to a durable spool"
    )
    option = parser.add_argument
    option("--broker", required=True, metavar="URL", help="mqtt://HOST:PORT")
    option("--spool", required=True, type=Path, metavar="DIR", help="folder of all spools")
    option("--name", required=True, help="this collector's name: its folder in --spool and its client_id")
    option("--topic", action="append", metavar="FILTER", help="repeatable (default fleet/+/telemetry)")
    option("--keep-alive", type=int, default=60, metavar="S", help="seconds (default %(default)s)")
    option("--segment-bytes", type=int, default=DEFAULT_SEGMENT_BYTES, metavar="N", help="default %(default)s")
    option("--longest-delay", type=float, default=128.0, metavar="S", help="longest wait between attempts")
    option("--status", type=Path, metavar="FILE", help="rewrite FILE with one JSON object twice a second")
    given = parser.parse_args(argv)
    if os.sep in given.name or given.name.startswith("."):
        raise UsageError(f"--name {given.name} is not a plain name; use letters, digits and hyphens")
    if not 0 <= given.keep_alive <= 65535:
        raise UsageError(f"--keep-alive {given.keep_alive} is not in 0..65535 seconds")
    config = CollectorConfig(
        broker=given.broker,
        spool=given.spool,
        name=given.name,
        topic_filters=tuple(given.topic or DEFAULT_TOPIC_FILTERS),
        keep_alive=given.keep_alive,
        segment_bytes=given.segment_bytes,
        longest_delay_s=given.longest_delay,
    )
    return config, given.status


def run(config: CollectorConfig, status_path: Path | None) -> None:
    """Run a collector in this process until SIGTERM or SIGINT.

    :raises UsageError, SpoolDamaged: it could not start.
    """
    parse_broker(config.broker)
    with Spool(config.spool / config.name, segment_bytes=config.segment_bytes) as spool:
        collector = Collector(config, spool, on_subscribed=lambda: print("subscribed", config.name, flush=True))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: collector.stop())
        status = StatusFile(status_path, collector.status)
        try:
            collector.run()
        finally:
            status.close()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        run(*_arguments(argv))
    except IngestError as error:
        print(f"collector: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
