"""The pipeline's figures for Prometheus and its health, both derived from its status."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as Families

Status = Mapping[str, object]

PREFIX = "umqtt_ingest_"
COUNTERS = {
    "batches": "Micro-batches.",
    "messages": "MQTT messages in them.",
    "replayed": "Messages that bronze already had: a micro-batch repeated, or a new checkpoint.",
    "rows_bronze": "Rows appended to bronze.",
    "rows_silver": "Rows appended to silver.",
    "rows_quarantined": "Rows appended to quarantine.",
    "rows_status": "Rows appended to status.",
    "rows_logs": "Rows appended to logs.",
    "ignored": "Messages in bronze alone: there is no value in them, or a rule leaves them out.",
    "duplicates": "Readings that were received again.",
}
GAUGES: Mapping[str, tuple[str, str, float]] = {
    "boots": ("boots", "Boots in the set of readings seen.", 1),
    "open_gaps": ("open_gaps", "Ranges of seq that are missing.", 1),
    "alerts_waiting": ("alerts_waiting", "Beginnings and ends of alerts that are not sent yet.", 1),
    "alerts_failing": ("alerts_failing", "Destinations of alerts whose last delivery failed.", 1),
    "gold_seconds": ("gold_ms", "Duration of the newest update of gold.", 1e-3),
    "last_batch_seconds": ("last_batch_ms", "Duration of the newest micro-batch with messages.", 1e-3),
    "rows_per_second": ("rows_per_second", "Messages a second in it.", 1),
    "lag_bytes": ("lag_bytes", "Bytes of the spool that are durable and not yet in the tables.", 1),
    "gold_failing": ("gold_failing", "1 while gold cannot be updated.", 1),
}
"""Each metric with the status key, its meaning and the factor."""
BY_RULE = "alerts"
"""The metric of open alerts, with the rule as its label."""
STUCK_MS = 5 * 60_000
"""How long messages may wait without a completed micro-batch."""


class Figures(Families):
    """The pipeline's figures for Prometheus.

    :param status: returns the pipeline's status; keys that are None are left out.
    """

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return no families, so that the status is not read before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of one scrape."""
        status = self._status()
        for key, meaning in COUNTERS.items():
            if (count := status.get(key)) is not None:
                yield CounterMetricFamily(PREFIX + key, meaning, value=_number(count))
        for name, (key, meaning, factor) in GAUGES.items():
            if (value := status.get(key)) is not None:
                yield GaugeMetricFamily(PREFIX + name, meaning, value=_number(value) * factor)
        by_rule = status.get("alerts_by_rule")
        if isinstance(by_rule, dict):
            family = GaugeMetricFamily(PREFIX + BY_RULE, "Alerts that last, in the newest gold.", labels=["rule"])
            for rule, count in by_rule.items():
                family.add_metric([rule], count)
            yield family


def health(status: Status, now_ms: float) -> str:
    """Return what is wrong with the pipeline, for people; "" if nothing is.

    :param now_ms: Unix milliseconds.
    """
    if status["state"] != "running":
        return f"the pipeline is {status['state']}"
    since = status["waiting_since_ms"]
    if since is not None and now_ms - _number(since) > STUCK_MS:
        waited = round((now_ms - _number(since)) / 1000)
        return f"{status['lag_bytes']} bytes of the spool wait, and no micro-batch has ended for {waited} s"
    return "gold cannot be updated: see standard error" if status.get("gold_failing") else ""


def _number(value: object) -> float:
    assert isinstance(value, bool | int | float)
    return float(value)
