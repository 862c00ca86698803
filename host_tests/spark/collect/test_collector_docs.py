"""docs/collector.md is true: its file can be loaded, its options and metrics exist, and its tables are complete."""

import re
from pathlib import Path

from spark_ingest.collector.collector import Collector
from spark_ingest.collector.config import DEFAULT_TOPIC_FILTERS, CollectorConfig, load
from spark_ingest.collector.metrics import _COUNTERS, _GAUGES
from spark_ingest.spool.writer import Spool

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "collector.md").read_text()


def test_the_file_of_the_page_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "north").write_text("secret\n")
    (tmp_path / "collect.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE, re.S)[0])
    north, south = load(tmp_path / "collect.toml")
    assert north.access.password() == b"secret"
    assert set(south.topic_filters) < set(DEFAULT_TOPIC_FILTERS), "what a fleet of this project publishes"


def test_the_tables_of_status_and_metrics_are_whole(tmp_path):
    table = PAGE.split("| status | metric")[1].split("\n\n")[0]
    rows = [line.split("|")[1:] for line in table.splitlines()[2:]]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    config = CollectorConfig("mqtt://127.0.0.1:1", tmp_path, "north")
    with Spool(tmp_path / "north") as spool:
        assert listed == set(Collector(config, spool).status())
    metrics = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert metrics == {f"{key}_total" for key in _COUNTERS} | set(_GAUGES)
