"""The `$SYS` topics: those of mosquitto, with the same names and meanings, and those that only this broker has.

The values are published retained through the router, only when they have changed. They are not stored: after a restart
they would be wrong. A wildcard in the first level does not match them [MQTT-4.7.2-1]; `$SYS/#` does.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..routing.router import Router
from ..stats import Stats
from .rates import WINDOWS, LoadAverage
from .readings import broker_version, dropped_by_reason
from .survey import Totals

_ROOT = "$SYS/broker/"


class Moment(NamedTuple):
    """The sources for the values of one publication. uptime: whole seconds."""

    stats: Stats
    totals: Totals
    uptime: int


class Topic(NamedTuple):
    """One topic below `$SYS/broker/`, its meaning, and the function for its value."""

    name: str
    meaning: str
    value: Callable[[Moment], object]


TOPICS = (
    Topic("version", "this broker's name and version; never changes", lambda _: f"umqtt_broker {broker_version()}"),
    Topic("uptime", "whole seconds since the start, with the word `seconds`", lambda now: f"{now.uptime} seconds"),
    Topic("clients/connected", "clients connected", lambda now: now.totals.connected),
    Topic("clients/active", "old name of clients/connected", lambda now: now.totals.connected),
    Topic("clients/disconnected", "persistent sessions without a connection", lambda now: now.totals.away),
    Topic("clients/inactive", "old name of clients/disconnected", lambda now: now.totals.away),
    Topic("clients/total", "sessions, connected or not", lambda now: now.totals.connected + now.totals.away),
    Topic("clients/maximum", "most network connections at once since the start", lambda now: now.stats.connections_max),
    Topic(
        "clients/expired", "sessions forgotten because session_expiry passed", lambda now: now.stats.sessions_expired
    ),
    Topic(
        "clients/slow", "connected clients that take messages more slowly than they come", lambda now: now.totals.slow
    ),
    Topic("clients/wrong_passwords", "clients refused with return code 4", lambda now: now.stats.wrong_passwords),
    Topic(
        "clients/told_to_wait",
        "clients refused with return code 3: too many passwords to check, or wrong ones before",
        lambda now: now.stats.told_to_wait,
    ),
    Topic("messages/received", "same as publish/messages/received", lambda now: now.stats.messages_in),
    Topic("messages/sent", "same as publish/messages/sent", lambda now: now.stats.messages_out),
    Topic("messages/stored", "same as store/messages/count", lambda now: _stored(now)),
    Topic(
        "store/messages/count",
        "messages queued or in flight, once for each session, and retained messages",
        lambda now: _stored(now),
    ),
    Topic("store/messages/bytes", "payload bytes queued for sessions", lambda now: now.totals.queued_bytes),
    Topic("publish/messages/received", "PUBLISH packets received", lambda now: now.stats.messages_in),
    Topic(
        "publish/messages/sent", "PUBLISH packets sent, those sent again included", lambda now: now.stats.messages_out
    ),
    Topic("publish/messages/dropped", "messages dropped, for any reason", lambda now: now.stats.dropped),
    Topic("publish/messages/denied", "messages a client may not publish", lambda now: now.stats.denied),
    Topic("bytes/received", "bytes received from clients", lambda now: now.stats.bytes_in),
    Topic("bytes/sent", "bytes sent to clients", lambda now: now.stats.bytes_out),
    Topic("retained messages/count", "retained messages, `$SYS` included", lambda now: now.stats.retained),
    Topic("subscriptions/count", "subscriptions of all sessions", lambda now: now.stats.subscriptions),
    Topic(
        "shared_subscriptions/count",
        "those of them that are shared: members of groups",
        lambda now: now.stats.shared_subscriptions,
    ),
    Topic("store/commits", "transactions of the store", lambda now: now.stats.commits),
    Topic(
        "store/commits/failed", "transactions that failed and are tried again", lambda now: now.stats.commit_failures
    ),
)

# Counters whose growth per minute is averaged: mosquitto's names below `load/`.
LOADS: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("messages/received", "PUBLISH packets received", lambda stats: stats.messages_in),
    ("messages/sent", "PUBLISH packets sent", lambda stats: stats.messages_out),
    ("publish/received", "PUBLISH packets received", lambda stats: stats.messages_in),
    ("publish/sent", "PUBLISH packets sent", lambda stats: stats.messages_out),
    ("publish/dropped", "messages dropped", lambda stats: stats.dropped),
    ("bytes/received", "bytes received", lambda stats: stats.bytes_in),
    ("bytes/sent", "bytes sent", lambda stats: stats.bytes_out),
    ("sockets", "network connections opened", lambda stats: stats.connections_accepted),
)


def _stored(now: Moment) -> int:
    return now.totals.queued + now.totals.in_flight + now.stats.retained


def topic_names(stats: Stats) -> Iterator[tuple[str, str]]:
    """Yield every topic name with its meaning, to compare the documentation's table with."""
    for topic in TOPICS:
        yield _ROOT + topic.name, topic.meaning
    for reason in dropped_by_reason(stats):
        yield f"{_ROOT}publish/messages/dropped/{reason}", f"messages dropped: {reason.replace('_', ' ')}"
    for name, meaning, _ in LOADS:
        for minutes in WINDOWS:
            yield f"{_ROOT}load/{name}/{minutes}min", f"{meaning}, a minute, averaged over {minutes} min"


class SysTopics:
    """Publishes the topics. Create it when the broker has started: the load averages begin at that time."""

    def __init__(self, router: Router, stats: Stats) -> None:
        self._router = router
        self._stats = stats
        self._published: dict[str, bytes] = {}
        self._loads = [LoadAverage(count(self._stats)) for _, _, count in LOADS]

    def publish(self, totals: Totals, uptime: int, seconds: float) -> int:
        """Publish the values that have changed. Returns the number of topics published.

        uptime: seconds since the start. seconds: time since the last call, for the load averages.
        """
        published = 0
        for name, value in self._values(Moment(self._stats, totals, uptime), seconds):
            payload = str(value).encode()
            if self._published.get(name) != payload:
                self._published[name] = payload
                self._router.publish_own((_ROOT + name).encode(), payload)
                published += 1
        self._router.flush()
        return published

    def withdraw(self) -> None:
        """Remove the topics, so that outdated figures are not taken for current ones."""
        for name in self._published:
            self._router.publish_own((_ROOT + name).encode(), b"")
        self._published.clear()
        self._router.flush()

    def _values(self, now: Moment, seconds: float) -> Iterator[tuple[str, object]]:
        for topic in TOPICS:
            yield topic.name, topic.value(now)
        for reason, count in dropped_by_reason(now.stats).items():
            yield f"publish/messages/dropped/{reason}", count
        for (name, _, count), load in zip(LOADS, self._loads, strict=True):
            for minutes, average in zip(WINDOWS, load.update(count(now.stats), seconds), strict=True):
                yield f"load/{name}/{minutes}min", f"{average:.2f}"
