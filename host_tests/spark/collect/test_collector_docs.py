"""docs/collector.md is true: its file can be loaded, its options and metrics exist, and its tables are complete."""

import re
from pathlib import Path

import pytest

from spark_ingest.collector import command
from spark_ingest.collector.collector import Collector
from spark_ingest.collector.config import DEFAULT_TOPIC_FILTERS, CollectorConfig, load
from spark_ingest.collector.journal import level
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


def test_the_page_names_the_default_filters_and_topics_that_they_match():
    topics = PAGE.split("## Topics")[1].split("\n## ")[0]
    for topic_filter in DEFAULT_TOPIC_FILTERS:
        assert f"`{topic_filter}`" in topics
    named = re.findall(r"[\w+-]+(?:/[\w+-]+)*/(?:telemetry|status|log)\b", PAGE)
    assert named
    for topic in named:
        # The level before it is for sharing the load.
        assert topic[topic.find("fleet/") :].replace("pump-7", "+") in DEFAULT_TOPIC_FILTERS, topic


def test_the_page_names_every_key_of_the_file():
    keys = set(CollectorConfig.__dataclass_fields__) - {"topic_filters"} | {"topics"}
    listed = re.search(r"Keys: (.*?)\.\n", PAGE, re.S)
    assert listed and set(re.findall(r"`(\w+)`", listed[1])) == keys


def test_every_option_that_the_page_names_exists_and_its_commands_parse():
    options = {name for parameter in command.collect.params for name in parameter.opts}
    for line in re.findall(r"umqtt collect ((?:.*\\\n)*.*)", PAGE):
        named = set(re.findall(r"(--[a-z-]+)", line.split("`")[0]))
        assert named <= options | {"--help"}, line


def test_the_tables_of_status_and_metrics_are_whole(tmp_path):
    table = PAGE.split("| status | metric")[1].split("\n\n")[0]
    rows = [line.split("|")[1:] for line in table.splitlines()[2:]]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    config = CollectorConfig("mqtt://127.0.0.1:1", tmp_path, "north")
    with Spool(tmp_path / "north") as spool:
        assert listed == set(Collector(config, spool).status())
    metrics = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert metrics == {f"{key}_total" for key in _COUNTERS} | set(_GAUGES)


def test_the_table_of_alarms_is_whole():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## Alarms")[1].split("## ")[0], re.M))
    assert listed == {event for event in _events() if level(event) == "error"}
    warnings = re.search(r"Warnings \((.*?)\)", PAGE)
    assert warnings and set(re.findall(r"`(\w+)`", warnings[1])) == {
        event for event in _events() if level(event) == "warning"
    }


def _events() -> set[str]:
    """Return every kind of event that the collector reports."""
    found: set[str] = set()
    for file in (ROOT / "spark_ingest" / "collector").glob("*.py"):
        found |= set(re.findall(r"_(?:say|report)\(\s*\"(\w+)\"", file.read_text()))
        found |= set(re.findall(r"events\.append\(\(\"(\w+)\"", file.read_text()))
        found |= set(re.findall(r"journal\.event\([^,]*, \"(\w+)\"", file.read_text()))
    assert len(found) > 8
    return found


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(#([\w-]+)\)", PAGE))))
def test_links_within_the_page_lead_somewhere(link):
    headings = re.findall(r"^#+ (.*)$", PAGE, re.M)
    assert link in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
