"""One collector: it receives MQTT messages, writes them to a durable spool and then acknowledges them.

A collector runs in a process of its own, never in a thread of a Spark job, because the broker's session must outlive
single queries. It runs until :meth:`Collector.stop`; then it reads what has already arrived, syncs, acknowledges and
disconnects. A killed collector loses nothing either: the broker sends again whatever was not acknowledged, and
duplicates are removed later by the identity of each reading.

Without room (see ``disk_quota``) it disconnects and waits. If it only stopped reading, it would not read the answers
to its pings either, so neither side could tell a dead link from a slow one; and brokers keep messages for a client that
is offline, but may drop one that is slow.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from ..errors import BrokerRefused, MalformedStream, SpoolWriteFailed, UsageError
from ..escape import remark
from ..spool.writer import Spool
from .access import parse_nodes
from .backoff import Backoff
from .config import CollectorConfig
from .connection import Connection
from .counters import Counters
from .disk_quota import DiskQuota, QuotaReached
from .link import Link
from .nodes import check_cluster
from .session import Session, VersionRefused
from .wire5 import PASSING

__all__ = ["Collector", "CollectorConfig"]

_CONNECT_WITHIN_S = 15.0
_STABLE_AFTER_S = 10.0
_CHECK_ENDS_WITHIN_S = 1.0
# Refusals that end by themselves: return code 3 (server unavailable) of MQTT 3.1.1, and reason codes of MQTT 5.
_PASSING = PASSING | {3}
# Protocol levels of MQTT 5 and 3.1.1.
_NEWEST, _OLDER = 5, 4
# The takeover alarm: this many links in a row that each end within this many seconds of connecting mean that another
# client uses the same client id, and that each disconnects the other.
_TAKEOVER_LINKS, _TAKEOVER_S = 3, 3.0
_LOOK_FOR_ROOM_S = 1.0
_FIRST_NUDGE_S, _LAST_NUDGE_S = 2.0, 600.0


class Collector:
    """One collector, which :meth:`run` runs until :meth:`stop`; see the module.

    :param on_subscribed: called each time the broker has confirmed the subscription.
    :param report: called with the kind of event (see docs/collector.md) and one line of text for people.
    """

    def __init__(
        self,
        config: CollectorConfig,
        spool: Spool,
        *,
        on_subscribed: Callable[[], None] = lambda: None,
        report: Callable[[str, str], None] = lambda _kind, line: remark(line),
    ) -> None:
        self.config = config
        self.counters = Counters()
        self._spool = spool
        self._on_subscribed = on_subscribed
        self._report = report
        self._access = config.access
        _, self._nodes = parse_nodes(config.broker)
        self._level = _NEWEST
        self._failed_nodes = 0  # nodes that failed in a row, since the last successful subscription
        self._session = Session(config, self.counters, self._say)
        self._quota = DiskQuota(config.folder, max_bytes=config.max_spool_bytes, min_free_bytes=config.min_free_bytes)
        self._backoff = Backoff(config.longest_delay_s)
        self._short_links = 0
        self._stopping = False
        # A byte on this socket, sent by stop() or through signal.set_wakeup_fd, ends any wait.
        self._wake, self.wakeup_socket = socket.socketpair()
        self._wake.setblocking(False)
        self.wakeup_socket.setblocking(False)

    def stop(self) -> None:
        """Ask :meth:`run` to drain and return; safe to call from a signal handler or another thread."""
        self._stopping = True
        # If the socket is full, the loop wakes up anyway; if it is closed, the loop has already ended.
        with contextlib.suppress(BlockingIOError, OSError):
            self.wakeup_socket.send(b"\0")

    def status(self) -> dict[str, object]:
        """Return the status; ``counters`` documents the keys."""
        durable = self._spool.durable
        return {
            "name": self.config.name,
            "broker": self.config.broker,
            "spool": durable.spool,
            **asdict(self.counters),
            "spool_bytes": self._quota.used,
            "truncated_bytes": self._spool.truncated_bytes,
            "segment": durable.segment,
            "position": durable.position,
        }

    def run(self) -> None:
        """Collect messages until :meth:`stop`. Network and disk errors are reported, counted and retried."""
        # A daemon thread, because a node that does not answer must not delay the end of the process.
        checking = threading.Thread(target=self._check_nodes, name=f"{self.config.name} nodes", daemon=True)
        if len(self._nodes) > 1:
            checking.start()
        try:
            self._wait_for_room(self._quota.lacks())
            while not self._stopping:
                delay = self._one_connection()
                if not self._stopping and delay:
                    self._sleep(delay)
        finally:
            self._stopping = True
            if checking.ident is not None:
                checking.join(_CHECK_ENDS_WITHIN_S)
            self._wake.close()
            self.wakeup_socket.close()

    def _check_nodes(self) -> None:
        config = self.config
        for event in check_cluster(self._access, config.client_id, config.topic_filters, lambda: self._stopping):
            self._report(*event)

    def _one_connection(self) -> float:
        """Connect and collect until the link ends; return the seconds to wait before the next attempt."""
        counters = self.counters
        connected_at = time.monotonic()
        link = None
        host, port = self._nodes[0]
        # Every later link tries MQTT 5 again, since the broker may have been upgraded.
        level, self._level = self._level, _NEWEST
        try:
            link = Link(
                host,
                port,
                keep_alive=self.config.keep_alive,
                tls=self._access.tls(),
                timeout_s=_CONNECT_WITHIN_S,
            )
            counters.connects += 1
            connected_at = time.monotonic()
            self._collect(link, level)
            return 0.0
        except VersionRefused:
            self._level = _OLDER
            return 0.0
        except MalformedStream as error:
            counters.malformed_streams += 1
            self._say("malformed_stream", str(error))
            self._level = self._level_after(level)
        except BrokerRefused as error:
            counters.refusals += 1
            self._say("refused", str(error))
            # Any other refusal lasts until somebody changes the configuration.
            if error.return_code not in _PASSING:
                return self._backoff.after_refusal()
        except UsageError as error:
            # The files were checked at the start, but a password or certificate may have become unreadable since.
            self._say("unusable", str(error))
        except SpoolWriteFailed as error:
            counters.spool_errors += 1
            self._say("spool_error", str(error))
            self._disconnected(link)
            self._wait_for_room(self._quota.probe())
        except OSError as error:
            counters.lost_links += 1
            if link is not None:
                self._level = self._level_after(level)
            what_next = "trying MQTT 3.1.1" if self._level == _OLDER else "trying again"
            self._say("lost_link", f"no link to {host}:{port}: {error.strerror or error}; {what_next}")
            self._watch_for_takeover(time.monotonic() - connected_at)
        finally:
            was_subscribed = counters.subscribed
            self._disconnected(link)
        if was_subscribed and time.monotonic() - connected_at >= _STABLE_AFTER_S:
            self._backoff.reset()
        if was_subscribed:
            self._failed_nodes = 0
        else:
            self._nodes.append(self._nodes.pop(0))
            self._failed_nodes += 1
            if self._failed_nodes % len(self._nodes):
                return 0.0  # Try every node before waiting.
        return self._backoff.next_delay()

    def _level_after(self, level: int) -> int:
        """Return the protocol level to try next: an old broker may just close the link on a CONNECT of MQTT 5."""
        return _OLDER if level == _NEWEST and not self.counters.connected else _NEWEST

    def _collect(self, link: Link, level: int) -> None:
        connection = Connection(
            link,
            self._spool,
            self._quota,
            self.config,
            self.counters,
            stopping=lambda: self._stopping,
            wake_fd=self._wake.fileno(),
            level=level,
        )
        try:
            if not self._session.open(connection):
                return
            self.counters.subscribed = True
            self._report("subscribed", f"subscribed at {self.config.broker}")
            self._on_subscribed()
            connection.collect()
            connection.drain()
            connection.finish()
        except QuotaReached as reason:
            # Everything read so far is durable and acknowledged; the broker sends again whatever was not read.
            with contextlib.suppress(OSError):
                connection.finish()
            if not self._stopping:
                self._disconnected(link)
                self._wait_for_room(str(reason))

    def _disconnected(self, link: Link | None) -> None:
        self.counters.connected = self.counters.subscribed = False
        if link is not None:
            link.close()

    def _watch_for_takeover(self, lasted_s: float) -> None:
        """Count links that were lost within 3 s of connecting, and raise the takeover alarm at the third in a row."""
        if not self.counters.connected or lasted_s >= _TAKEOVER_S:
            self._short_links = 0
            return
        self._short_links += 1
        if self._short_links == _TAKEOVER_LINKS:
            self._short_links = 0
            self.counters.takeovers += 1
            self._say(
                "takeover",
                f"{_TAKEOVER_LINKS} links to {self.config.broker} in a row ended within {_TAKEOVER_S:g} s: is another "
                f"collector called {self.config.name}? Two with one client id throw each other out",
            )

    def _wait_for_room(self, reason: str | None) -> None:
        """Wait until the spool has room again or :meth:`stop` is called.

        :param reason: why there is no room; None returns at once.
        """
        if reason is None:
            return
        self.counters.pauses += 1
        self.counters.waiting = reason
        self._say("waiting", reason)
        began = nudged = time.monotonic()
        nudge_s = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now - nudged >= nudge_s:
                # Only finished segments can be removed, and Spark removes them only with its next micro-batch, which
                # needs a new durable position. A new segment provides both; 2 s to 10 min pass between attempts.
                with contextlib.suppress(SpoolWriteFailed):
                    self._spool.rotate()
                nudged, nudge_s = now, min(max(_FIRST_NUDGE_S, nudge_s * 2), _LAST_NUDGE_S)
            self._sleep(_LOOK_FOR_ROOM_S)
            lacks = self._quota.lacks(margin=True) or self._quota.probe()
            if lacks is None:
                self._report("resumed", f"there is room again after {time.monotonic() - began:.0f} s")
                break
            self.counters.waiting = lacks
        self.counters.waiting = None

    def _say(self, kind: str, line: str) -> None:
        self.counters.last_error = line
        self._report(kind, line)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if select.select([self._wake], [], [], left)[0]:
                self._wake.recv(4096)
