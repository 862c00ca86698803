"""The collectors' metrics for Prometheus, read at each scrape. The only label is the collector's name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as Families

Status = Mapping[str, object]

_PREFIX = "umqtt_collector_"
_COUNTERS = {
    "messages": "PUBLISH packets made durable.",
    "bytes": "Their bytes, as they came off the wire.",
    "groups": "Blocks written, each with one sync.",
    "append_seconds": "Time spent in writing and syncing blocks.",
    "redelivered": "Messages that came with DUP set.",
    "connects": "Connections that a broker accepted.",
    "lost_links": "Connections lost, or not made.",
    "malformed_streams": "Connections closed because the broker sent bytes that are not MQTT.",
    "refusals": "CONNACK or SUBACK packets that refused.",
    "sessions_lost": "The broker had forgotten the session: what it held for it is gone.",
    "takeovers": "Alarms that somebody else uses the same client id.",
    "spool_errors": "Appends that failed; nothing of them was acknowledged.",
    "pauses": "Times that it stopped taking messages because there was no room.",
}
_GAUGES: Mapping[str, tuple[str, Callable[[Status], float]]] = {
    "connected": ("1 while the broker has accepted the connection.", lambda status: _number(status["connected"])),
    "subscribed": ("1 while messages can come.", lambda status: _number(status["subscribed"])),
    "waiting": ("1 while it takes no messages for lack of room.", lambda status: float(bool(status["waiting"]))),
    "spool_bytes": ("Bytes in the spool's segments.", lambda status: _number(status["spool_bytes"])),
    "spool_limit_bytes": ("What the spool may hold; 0: no limit.", lambda status: _number(status["max_spool_bytes"])),
    "segment": ("Number of the segment being written.", lambda status: _number(status["segment"])),
    "last_message_timestamp_seconds": (
        "When the newest message was received, in seconds since 1970; 0: none yet.",
        lambda status: _number(status["last_message_ms"] or 0) / 1000,
    ),
}


class Figures(Families):
    """The collectors' metrics. `statuses` returns each collector's status, including ``max_spool_bytes``."""

    def __init__(self, statuses: Callable[[], Sequence[Status]]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterable[Metric]:
        # Statuses are read only at a scrape.
        return ()

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        for key, meaning in _COUNTERS.items():
            family = CounterMetricFamily(_PREFIX + key, meaning, labels=["collector"])
            for status in statuses:
                family.add_metric([str(status["name"])], _number(status[key]))
            yield family
        for key, (meaning, value) in _GAUGES.items():
            family = GaugeMetricFamily(_PREFIX + key, meaning, labels=["collector"])
            for status in statuses:
                family.add_metric([str(status["name"])], value(status))
            yield family


def _number(value: object) -> float:
    assert isinstance(value, bool | int | float)
    return float(value)
