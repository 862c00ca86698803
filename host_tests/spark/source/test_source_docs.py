"""Every example of docs/spark-source.md runs and prints what it says; the page names every option and column."""

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, in_version_5, publish_packet, record
from umqtt_testkit import encoder

from examples import Example, examples
from spark_ingest.source.options import OPTIONS
from spark_ingest.source.rows import HEADERS_ARROW_SCHEMA
from spark_ingest.source.sink import COLUMNS, SINK_OPTIONS
from spark_ingest.spool.writer import Spool

ROOT = Path(__file__).resolve().parents[3]

PAGE = ROOT / "docs" / "spark-source.md"
EXAMPLES = examples(PAGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Provide the folder where the examples run: the page's spool, with nine readings and three status messages."""
    folder = tmp_path_factory.mktemp("page")
    with Spool(folder / "spool" / "north") as spool:
        for group in range(3):
            sent = [("fleet/pump-1/telemetry", record("pump-1", "1-a", 3 * group + i)) for i in range(3)]
            sent.append(("fleet/pump-1/status", b'{"online":true}'))
            packets, level = [publish_packet(topic, payload) for topic, payload in sent], 4
            if group == 2:
                # It came by MQTT 5, and its last message has a header and a content type.
                site = encoder.properties(user_property=[(b"site", b"north")], content_type=b"application/json")
                status = encoder.publish(sent[-1][0].encode(), sent[-1][1], 1, 1, properties=site)
                packets, level = [*map(in_version_5, packets[:-1]), status], 5
            spool.append(b"".join(packets), len(packets), RECEIVED_MS + group, level)
    return folder


def _absolute(folder: Path) -> Callable[[re.Match[str]], str]:
    return lambda found: found[1] + repr(str(folder / found[2]))


def run(example: Example) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.source, f"{PAGE.name}", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.mark.parametrize("example", [pytest.param(each, id=each.heading) for each in EXAMPLES if each.run])
def test_an_example_of_the_page_runs_and_prints_what_it_says(spark, folder, mosquitto, monkeypatch, example):
    monkeypatch.chdir(folder)
    # Spark resolves relative paths in the Java process's folder; the page means the reader's.
    example.source = re.sub(r'(path", |Location", |parquet\(|Path\()"([a-z-]+)"', _absolute(folder), example.source)
    example.source = example.source.replace("broker.example.com", f"127.0.0.1:{mosquitto}")
    printed = run(example)
    assert [text for text in example.expected if text not in printed] == [], printed


def test_what_cannot_run_here_is_python_at_least():
    for example in EXAMPLES:
        compile(example.source, f"{PAGE.name}:{example.line}", "exec")


def test_the_page_names_every_option_and_every_column_and_no_other():
    page = PAGE.read_text()
    tables = {title: page.split(f"## {title}\n")[1].split("\n## ")[0] for title in ("Schema", "Options", "Writing")}
    named = {title: re.findall(r"^\| `(\w+)` \|", text, re.M) for title, text in tables.items()}
    assert named["Schema"] == HEADERS_ARROW_SCHEMA.names
    assert named["Options"] == list(OPTIONS)
    assert named["Writing"] == [*COLUMNS, *SINK_OPTIONS]
