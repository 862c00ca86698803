"""The broker's metrics for Prometheus, read at each scrape. Labels have few values: never a client identifier."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..stats import Stats
from .readings import broker_version, dropped_by_reason, listeners
from .survey import Totals
from .view import BrokerView

_PREFIX = "umqtt_broker_"


class Scrape(NamedTuple):
    """The sources for the values of one scrape. started_at: seconds since 1970. refused: HTTP requests, by reason."""

    view: BrokerView
    stats: Stats
    totals: Totals
    started_at: float
    refused: Mapping[str, int]


Value = float | Mapping[str, float]


class Family(NamedTuple):
    """One metric.

    name: without prefix, and for a counter without `_total`. kind: "gauge" or "counter". value: returns a number, or
    with a `label` a number for each of the label's values.
    """

    name: str
    kind: str
    meaning: str
    value: Callable[[Scrape], Value]
    label: str = ""


def _by_listener(scrape: Scrape) -> Mapping[str, float]:
    return {name: scrape.totals.by_listener[name] for name, _ in listeners(scrape.view)}


def _certificates(scrape: Scrape) -> Mapping[str, float]:
    found = zip(listeners(scrape.view), scrape.view.certificates_expire_at, strict=True)
    return {name: expires_at for (name, _), expires_at in found if expires_at is not None}


def _sessions(scrape: Scrape) -> Mapping[str, float]:
    return {"connected": scrape.totals.connected, "away": scrape.totals.away}


def _timeouts(scrape: Scrape) -> Mapping[str, float]:
    return {"connect": scrape.stats.connect_timeouts, "keep_alive": scrape.stats.keep_alive_timeouts}


_GAUGE, _COUNTER = "gauge", "counter"

FAMILIES = (
    Family("info", _GAUGE, "Always 1; the version is the label.", lambda _: {broker_version(): 1}, "version"),
    Family("start_time_seconds", _GAUGE, "When the broker started, in seconds since 1970.", lambda v: v.started_at),
    Family("connections", _GAUGE, "Network connections open.", lambda v: v.stats.connections),
    Family("connections_maximum", _GAUGE, "Most network connections at once.", lambda v: v.stats.connections_max),
    Family("clients", _GAUGE, "Clients connected, by listener.", _by_listener, "listener"),
    Family(
        "certificate_expires_seconds",
        _GAUGE,
        "When the certificate of a TLS listener expires, in seconds since 1970.",
        _certificates,
        "listener",
    ),
    Family("sessions", _GAUGE, "Sessions, by whether their client is connected.", _sessions, "state"),
    Family("slow_consumers", _GAUGE, "Clients that take messages more slowly than they come.", lambda v: v.totals.slow),
    Family("held_back_clients", _GAUGE, "Clients that are read slowly, or not at all.", lambda v: v.totals.held_back),
    Family("subscriptions", _GAUGE, "Subscriptions of all sessions.", lambda v: v.stats.subscriptions),
    Family("shared_subscriptions", _GAUGE, "Members of shared subscriptions.", lambda v: v.stats.shared_subscriptions),
    Family(
        "shared_queued_messages",
        _GAUGE,
        "QoS 1 and 2 messages waiting in shared subscriptions.",
        lambda v: sum(group.queued for group in v.view.groups),
    ),
    Family("retained_messages", _GAUGE, "Retained messages, $SYS included.", lambda v: v.stats.retained),
    Family(
        "queued_messages",
        _GAUGE,
        "QoS 1 and 2 messages waiting, in sessions and shared subscriptions.",
        lambda v: v.totals.queued,
    ),
    Family("queued_bytes", _GAUGE, "Payload bytes of them.", lambda v: v.totals.queued_bytes),
    Family("in_flight_messages", _GAUGE, "Messages sent and not acknowledged.", lambda v: v.totals.in_flight),
    Family("connections_accepted", _COUNTER, "Network connections opened.", lambda v: v.stats.connections_accepted),
    Family(
        "connections_refused", _COUNTER, "Connections turned away or refused.", lambda v: v.stats.connections_refused
    ),
    Family(
        "connections_timed_out", _COUNTER, "Connections closed for silence, by what was due.", _timeouts, "waited_for"
    ),
    Family(
        "connections_malformed",
        _COUNTER,
        "Connections closed for a packet against the protocol, by reason.",
        lambda v: dict(v.stats.malformed),
        "reason",
    ),
    Family("wrong_passwords", _COUNTER, "Clients refused with return code 4.", lambda v: v.stats.wrong_passwords),
    Family(
        "told_to_wait",
        _COUNTER,
        "Clients refused with return code 3: too many passwords to check, or wrong ones before.",
        lambda v: v.stats.told_to_wait,
    ),
    Family("takeovers", _COUNTER, "Connections closed by a newer one of the same client.", lambda v: v.stats.takeovers),
    Family(
        "sessions_expired", _COUNTER, "Sessions forgotten after session_expiry.", lambda v: v.stats.sessions_expired
    ),
    Family("messages_received", _COUNTER, "PUBLISH packets received.", lambda v: v.stats.messages_in),
    Family("messages_sent", _COUNTER, "PUBLISH packets sent, resent ones included.", lambda v: v.stats.messages_out),
    Family("messages_resent", _COUNTER, "PUBLISH packets sent again with DUP.", lambda v: v.stats.resent),
    Family(
        "messages_dropped",
        _COUNTER,
        "Messages dropped for one session, by reason.",
        lambda v: dropped_by_reason(v.stats),
        "reason",
    ),
    Family("messages_denied", _COUNTER, "Messages their client may not publish.", lambda v: v.stats.denied),
    Family("received_bytes", _COUNTER, "Bytes received from clients.", lambda v: v.stats.bytes_in),
    Family("sent_bytes", _COUNTER, "Bytes sent to clients.", lambda v: v.stats.bytes_out),
    Family(
        "publishers_held",
        _COUNTER,
        "Times a publisher waited for a full queue, or for the disk.",
        lambda v: v.stats.publishers_held,
    ),
    Family(
        "publishers_let_through",
        _COUNTER,
        "Times a waiting publisher was read, for its acknowledgements.",
        lambda v: v.stats.publishers_let_through,
    ),
    Family("rate_limited", _COUNTER, "Times a client was slowed by max_receive_rate.", lambda v: v.stats.rate_limited),
    Family(
        "retained_refused",
        _COUNTER,
        "Messages that were delivered but not retained, for want of room.",
        lambda v: v.stats.retained_refused,
    ),
    Family("wills_published", _COUNTER, "Wills published.", lambda v: v.stats.wills),
    Family(
        "unknown_acknowledgements",
        _COUNTER,
        "Acknowledgements of packet identifiers not in use.",
        lambda v: v.stats.unknown_acknowledgements,
    ),
    Family("store_commits", _COUNTER, "Transactions of the store.", lambda v: v.stats.commits),
    Family(
        "store_commit_failures",
        _COUNTER,
        "Transactions that failed and are tried again.",
        lambda v: v.stats.commit_failures,
    ),
    Family("standby", _GAUGE, "1 while another broker has the store.", lambda v: int(bool(v.view.standby))),
    Family(
        "http_requests_refused",
        _COUNTER,
        "Requests to this HTTP listener turned away, by reason.",
        lambda v: v.refused,
        "reason",
    ),
)


class BrokerCollector(Collector):
    """Yields every family, with the values that `scrape` returns at that time."""

    def __init__(self, scrape: Callable[[], Scrape]) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their values."""
        scrape = self._scrape()
        for family in FAMILIES:
            kind = CounterMetricFamily if family.kind == _COUNTER else GaugeMetricFamily
            metric = kind(_PREFIX + family.name, family.meaning, labels=[family.label] if family.label else [])
            value = family.value(scrape)
            if isinstance(value, Mapping):
                for label, number in value.items():
                    metric.add_metric([label], number)
            else:
                metric.add_metric([], value)
            yield metric

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector computes no values."""
        return []


def metric_names() -> Iterator[tuple[str, str, str]]:
    """Yield the scraped name, the label and the meaning of each metric, to compare the documentation's table with."""
    for family in FAMILIES:
        yield _PREFIX + family.name + ("_total" if family.kind == _COUNTER else ""), family.label, family.meaning
