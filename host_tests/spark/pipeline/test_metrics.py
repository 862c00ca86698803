"""The pipeline's metrics and health, the page that lists them, and the dashboard that draws them."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families as parsed

from spark_ingest.collector import metrics as collector_metrics
from spark_ingest.metrics import MetricsServer
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.run.metrics import BY_RULE, COUNTERS, GAUGES, PREFIX, STUCK_MS, Figures, health
from spark_ingest.pipeline.run.pipeline import Pipeline
from spark_ingest.pipeline.run.upkeep import Upkeep
from spark_ingest.pipeline.write.batch import Totals

ROOT = Path(__file__).resolve().parents[3]
NAMES = {f"{PREFIX}{name}_total" for name in COUNTERS} | {PREFIX + name for name in (*GAUGES, BY_RULE)}


def running(folder: Path) -> Pipeline:
    """Return a pipeline that has written something, without Spark."""
    pipeline = Pipeline(PipelineConfig(None, folder, folder))
    pipeline._state = "running"
    pipeline._writer = type("Writer", (), {"totals": Totals(batches=3, rows_silver=7)})()
    pipeline._upkeep = Upkeep(pipeline.config, on_stage=lambda _stage: None)
    pipeline._upkeep.step(0)
    pipeline._upkeep.wait()
    pipeline._lag_bytes = 5
    return pipeline


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_what_prometheus_and_a_health_check_are_told_is_the_status(tmp_path):
    """Planted: a figure is left out, or a stuck pipeline counts as healthy."""
    pipeline, now = running(tmp_path), [1_000_000.0]
    server = MetricsServer("127.0.0.1", 0, Figures(pipeline.status), lambda: health(pipeline.status(), now[0]))
    try:
        code, text = get(server.port, "/metrics")
        told = {one.name: one.value for family in parsed(text) for one in family.samples}
        assert code == 200 and {name for name in told if name.startswith(PREFIX)} == NAMES
        assert (told[PREFIX + "batches_total"], told[PREFIX + "rows_silver_total"], told[PREFIX + "lag_bytes"]) == (
            3,
            7,
            5,
        )
        assert 'umqtt_ingest_alerts{rule="offline"} 0.0' in text
        assert get(server.port, "/health") == (200, "ok\n")
        pipeline._waiting_since_ms = int(now[0])
        now[0] += STUCK_MS
        assert get(server.port, "/health") == (200, "ok\n")
        now[0] += 1000
        waits = "5 bytes of the spool wait, and no micro-batch has ended for 301 s\n"
        assert get(server.port, "/health") == (503, waits)
        pipeline._waiting_since_ms = None
        pipeline._upkeep._failing = True
        assert get(server.port, "/health") == (503, "gold cannot be updated: see standard error\n")
        pipeline._state = "stopping"
        assert get(server.port, "/health") == (503, "the pipeline is stopping\n")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("batches", "since"),
    [
        ([(0, 0), (0, 9), (0, 9)], 2),
        ([(0, 9), (1, 9)], 2),
        ([(0, 9), (1, 0), (1, 9)], 3),
        ([(0, 9), (0, 0)], None),
    ],
)
def test_messages_wait_since_the_newest_micro_batch_that_ended_or_since_they_came(
    tmp_path, monkeypatch, batches, since
):
    """The parameters are (micro-batch, lag) at each look.

    Planted: an hour without messages counts as waiting for the next one.
    """
    pipeline, at = running(tmp_path), [0]
    pipeline._spools = object()
    monkeypatch.setattr("spark_ingest.pipeline.run.pipeline.time.time_ns", lambda: at[0] * 1_000_000)
    for at[0], (batch_id, lag) in enumerate(batches, 1):
        behind = {"north": {"lagBytes": lag}}
        monkeypatch.setattr("spark_ingest.source.offsets.lag_behind", lambda *_, behind=behind: behind)
        progress = {"sources": [{"endOffset": {}}], "batchId": batch_id}
        pipeline._observe(type("Query", (), {"lastProgress": progress})())
    assert pipeline.status()["waiting_since_ms"] == since


def test_the_dashboard_is_what_grafanas_schema_knows_and_asks_for_metrics_that_exist():
    """Planted: a misspelt key, which Grafana ignores, or a metric that nothing serves."""
    register_default_plugins()
    text = (ROOT / "examples" / "grafana" / "umqtt.json").read_text()
    content = json.loads(text)
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(content)))
    assert lacking(content, again) == []
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    cells = [
        (x, y)
        for panel in content["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    served = NAMES | {f"{collector_metrics._PREFIX}{name}_total" for name in collector_metrics._COUNTERS}
    served |= {collector_metrics._PREFIX + name for name in collector_metrics._GAUGES}
    assert set(re.findall(r"umqtt_\w+", text)) <= served


def lacking(given: object, known: object, where: str = "") -> list[str]:
    """Return the paths in `given` that are missing or different in `known`."""
    if isinstance(given, dict) and isinstance(known, dict):
        return [line for key, value in given.items() for line in lacking(value, known.get(key), f"{where}/{key}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        return [
            line for i, pair in enumerate(zip(given, known, strict=True)) for line in lacking(*pair, f"{where}/{i}")
        ]
    return [] if given == known else [where]
