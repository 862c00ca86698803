"""One collector: it receives MQTT messages, writes them to a durable spool and then acknowledges them.

A collector runs in a process of its own, never in a thread of a Spark job, because the broker's session must outlive
single queries. It runs until :meth:`Collector.stop`; then it reads what has already arrived, syncs, acknowledges and
disconnects. A killed collector loses nothing either: the broker sends again whatever was not acknowledged, and
duplicates are removed later by the identity of each reading.

Groups form by themselves: while one group is being synced, the next one arrives in the socket's buffer, so a slow
disk makes larger groups. The collector waits for more messages only if they arrive one by one.

Without room (see ``disk_quota``) it disconnects and waits. If it only stopped reading, it would not read the answers
to its pings either, so neither side could tell a dead link from a slow one; and brokers keep messages for a client that
is offline, but may drop one that is slow.
"""

import contextlib
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from umqtt_cli.escape import remark
from umqtt_robust.base_errors import MQTTError, ProtocolError
from umqtt_robust.errors import Downgraded, Refused

from ..errors import SpoolWriteFailed, UsageError
from ..spool.writer import Spool
from .access import parse_nodes
from .cluster import check_cluster
from .config import CollectorConfig
from .connection import ANSWER_WITHIN_S, FOR_EVER, Connection, in_words, is_takeover
from .counters import Counters
from .disk_quota import DiskQuota, QuotaReached
from .subscription import SubscriptionRecord, distinct_filters, overlapping_filters

__all__ = ["Collector", "CollectorConfig"]

_CHECK_ENDS_WITHIN_S = 1.0
# The newest protocol level that is tried: 5 for MQTT 5, 4 for MQTT 3.1.1.
_NEWEST = 5
_TRICKLE = 4
_BLOCK_OVERHEAD = 24
_DRAIN_S = 1.0
_LOOK_FOR_ROOM_S = 1.0
_FIRST_NUDGE_S, _LAST_NUDGE_S = 2.0, 600.0
# Share of the longest delay that a collector waits at least after a refusal that somebody has to end.
_REFUSED_SHARE = 0.75


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
        self._filters = distinct_filters(config.topic_filters)
        self._quota = DiskQuota(config.folder, max_bytes=config.max_spool_bytes, min_free_bytes=config.min_free_bytes)
        self._record = SubscriptionRecord(config.folder, config.broker, config.client_id, self._session_event)
        self._client = Connection(
            config,
            before_connect=self._record.put_aside,
            on_connect=self._connected,
            on_lost=self._lost,
            level=_NEWEST,
        )
        self._asked = False  # for subscriptions, which the broker has not confirmed yet
        self._refusal: str | None = None  # why the broker refused a subscription
        self._last_group = 0
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
        """Return the status; docs/collector.md explains its keys."""
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
        if len(parse_nodes(self.config.broker)[1]) > 1:
            checking.start()
        if "." in self.config.client_id:
            self._say("client_id", f"NATS refuses the client id {self.config.client_id}, because of its dot")
        for one, other in overlapping_filters(self._filters):
            self._say("overlap", f"{one} and {other} select some topics both: some brokers send their messages twice")
        try:
            self._disconnect()
            self._wait_for_room(self._quota.lacks())
            while not self._stopping:
                self._client.connect()
                self._collect()
        finally:
            self._stopping = True
            if checking.ident is not None:
                checking.join(_CHECK_ENDS_WITHIN_S)
            self._wake.close()
            self.wakeup_socket.close()

    def _check_nodes(self) -> None:
        config = self.config
        for event in check_cluster(config.access, config.client_id, config.topic_filters, lambda: self._stopping):
            self._report(*event)

    # Collecting

    def _collect(self) -> None:
        """Collect until asked to stop, or until an error is handled, after which the client connects again."""
        try:
            while not self._stopping:
                self._client.poll(1000, self._wake)
                self._store_group()
                if self._asked and self._client.connected and self._client.subscribed:
                    self._confirm_subscriptions()
            self._drain()
            self._disconnect()
        except QuotaReached as reason:
            # Everything taken so far is durable and acknowledged; the broker sends again whatever was not.
            self._disconnect()
            self._wait_for_room(str(reason))
        except SpoolWriteFailed as error:
            self.counters.spool_errors += 1
            self._say("spool_error", str(error))
            self._disconnect()
            self._wait_for_room(self._quota.probe())
            self._sleep(random.uniform(0, min(1.0, self.config.longest_delay_s)))
        except UsageError as error:
            # The files were checked at the start, but a password or certificate may have become unreadable since.
            self._say("unusable", str(error))

    def _store_group(self) -> bool:
        """Write the messages that have arrived as one durable group, and acknowledge it; False if there are none.

        :raises SpoolWriteFailed: it could not be made durable; it was not acknowledged.
        :raises QuotaReached: the spool is at a limit; everything taken so far is durable and acknowledged.
        """
        client, linger_s = self._client, self.config.group_ms / 1000
        waiting = client.waiting()
        if not waiting:
            return False
        if max(waiting, self._last_group) <= _TRICKLE and linger_s and not self._stopping:
            # If messages arrive one by one, a short wait saves most of the syncs. Under load there is no wait: a
            # broker with a small in-flight window would spend its time waiting for acknowledgements.
            time.sleep(linger_s)
            client.tick()
        group = client.take()
        assert group is not None
        self._last_group = group.count
        received_ms = time.time_ns() // 1_000_000
        began = time.perf_counter()
        self._spool.append(group.packets, group.count, received_ms, group.level)
        # The group is durable now: only from here on may the broker forget its messages.
        client.acknowledge_group(group)
        counters = self.counters
        counters.append_seconds += time.perf_counter() - began
        counters.messages += group.count
        counters.bytes += len(group.packets)
        counters.groups += 1
        counters.redelivered += group.redelivered
        counters.last_message_ms = received_ms
        self._quota.note(len(group.packets) + _BLOCK_OVERHEAD)
        return True

    def _drain(self) -> None:
        """Collect what has already arrived, for at most 1 s: under a steady stream this would never end."""
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            self._client.tick()
            if not self._store_group():
                return

    # The session

    def _connected(self, session_present: bool) -> None:
        client, counters = self._client, self.counters
        counters.connects += 1
        counters.connected = True
        self._refusal = None
        client.widen()
        expiry = client.connack_properties.get("session_expiry_interval", FOR_EVER) if client.mqtt5 else FOR_EVER
        if expiry != FOR_EVER:
            self._say(
                "session_expires",
                f"{self.config.broker} keeps the session {self.config.client_id} for {expiry} s when the collector is "
                "away: longer outages lose messages",
            )
        surplus = self._record.surplus(self._filters, session_present=session_present)
        self._asked = surplus is not None
        if surplus is None:
            self._subscribed()
            return
        for topic_filter in surplus:
            client.unsubscribe(topic_filter)
        for topic_filter in self._filters:
            client.subscribe(topic_filter, 1)

    def _confirm_subscriptions(self) -> None:
        self._asked = False
        if self._refusal is None:
            self._record.remember(self._filters)
            self._subscribed()
            return
        self.counters.refusals += 1
        self._say("refused", self._refusal)
        self._disconnect()
        # A refusal lasts until somebody changes the configuration.
        longest_s = self.config.longest_delay_s
        self._sleep(random.uniform(_REFUSED_SHARE * longest_s, longest_s))
        self._client.connect()

    def _subscribed(self) -> None:
        self.counters.subscribed = True
        self._report("subscribed", f"subscribed at {self.config.broker}")
        self._on_subscribed()

    def _session_event(self, kind: str, line: str) -> None:
        self.counters.sessions_lost += kind == "session_lost"
        self._say(kind, line)

    def _disconnect(self) -> None:
        self.counters.connected = self.counters.subscribed = False
        self._client.finish(int(ANSWER_WITHIN_S * 1000))

    # What the client reports

    def _lost(self, error: MQTTError | OSError | MemoryError) -> None:
        """Tell and count what has happened to a link, or that a subscription was refused."""
        broker, client_id = self.config.broker, self.config.client_id
        words = in_words(error)
        if isinstance(error, Refused) and error.args[0] in ("subscribe", "unsubscribe"):
            topic_filter = error.args[1].decode()
            if error.args[0] == "subscribe":
                why = f"{broker} refused the subscription to {topic_filter} ({words}): allow it to {client_id}"
                self._refusal = self._refusal or why
        elif isinstance(error, Downgraded):
            self._refusal = self._refusal or f"{broker}: {words}, which may lose messages"
        elif is_takeover(error):
            self.counters.takeovers += 1
            self._say(
                "takeover",
                f"3 links to {broker} in a row ended within 3 s: is another collector called {self.config.name}? Two "
                "with one client id throw each other out",
            )
        elif isinstance(error, MQTTError | OSError | MemoryError):  # others are raised by tick() too
            self._link_ended(error, words)

    def _link_ended(self, error: MQTTError | OSError | MemoryError, words: str) -> None:
        counters, client = self.counters, self._client
        at_subscribe = counters.connected and self._asked
        counters.connected = counters.subscribed = False
        if isinstance(error, Refused) and error.args[0] == "connect":
            if client.is_older(error):
                self._record.put_back()  # a refused CONNECT creates no session
                return
            counters.refusals += 1
            virtual_host, colon, _ = (self.config.username or "").rpartition(":")
            hint = f"; for RabbitMQ, {virtual_host!r} must be a virtual host in which the user has permissions"
            self._say("refused", f"{self.config.broker} refused the connection: {words}{hint if colon else ''}")
        elif isinstance(error, ProtocolError):
            counters.malformed_streams += 1
            self._say("malformed_stream", f"{client.node}: {words}")
        else:
            counters.lost_links += 1
            if at_subscribe:
                # Closing the connection is all that a broker of MQTT 3.1.1 can do if it has no return code for a
                # refused subscription.
                words += f" at SUBSCRIBE: may this user read {', '.join(self._filters)}?"
            what_next = "trying MQTT 3.1.1" if client.may_be_old else "trying again"
            self._say("lost_link", f"no link to {client.node}: {words}; {what_next}")

    # Waiting

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
