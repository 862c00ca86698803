"""``format("mqtt")`` in real Spark: resuming, AvailableNow, limits, loss, columns."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from proof.needs import needs_java
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from spark_helpers import RECEIVED_MS, SPARK_LIMIT_S, TOPIC, fill, in_version_5, publish_packet
from test_offsets import numbered
from umqtt_testkit import encoder

from spark_ingest.errors import DataLoss, UsageError
from spark_ingest.pipeline.run.session import began_too_slowly
from spark_ingest.source import data_source
from spark_ingest.source.data_source import MqttStreamReader, RangesStreamReader, messages_in
from spark_ingest.source.offsets import SpoolTree, bytes_between
from spark_ingest.source.options import Options
from spark_ingest.source.rows import HEADERS_ARROW_SCHEMA
from spark_ingest.spool.blocks import segment_path
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool


def read_everything(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query until it has read everything; again if Spark did not wait for its source's process."""
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(SPARK_LIMIT_S)
        except StreamingQueryException:
            if not began_too_slowly(query):
                raise
        else:
            return query


class Query:
    """A query over `path` that collects its payloads, micro-batch by micro-batch."""

    def __init__(self, spark, folder: Path, **options: object) -> None:
        self._spark = spark
        self._options = {"path": str(folder / "spool"), **options}
        self._checkpoint = str(folder / "checkpoint")

    def available_now(self) -> list[list[int]]:
        """Run until everything is read; return the payloads of each micro-batch, as sorted numbers."""
        batches: list[list[int]] = []

        def gather(frame, _batch_id: int) -> None:
            batches.append(sorted(int(p) for p in frame.toArrow()["payload"].to_pylist()))

        stream = self._spark.readStream.format("mqtt").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(gather).option("checkpointLocation", self._checkpoint)
        read_everything(writer)
        return [batch for batch in batches if batch]


@pytest.mark.smoke
def test_a_query_resumes_where_the_checkpoint_says_and_reads_only_what_is_new(spark, tmp_path):
    query = Query(spark, tmp_path, minPartitions=3)
    fill(tmp_path / "spool" / "north", numbered(0, 3, 4))
    assert query.available_now() == [list(range(12))]
    assert query.available_now() == []
    fill(tmp_path / "spool" / "north", numbered(12, 2, 4))
    fill(tmp_path / "spool" / "south", numbered(20, 1, 2))
    assert query.available_now() == [list(range(12, 22))]


def test_available_now_with_a_limit_takes_several_micro_batches_and_stops_at_the_end(spark, tmp_path):
    fill(tmp_path / "spool" / "north", numbered(0, 6, 4))
    batches = Query(spark, tmp_path, maxOffsetsPerTrigger=8).available_now()
    assert batches == [list(range(8)), list(range(8, 16)), list(range(16, 24))]


def test_a_limit_in_bytes_holds_too(spark, tmp_path):
    fill(tmp_path / "spool" / "north", [[b"%d" % i] for i in range(3)])
    assert Query(spark, tmp_path, maxBytesPerTrigger=1).available_now() == [[0], [1], [2]]


@pytest.mark.parametrize("cut", [False, True], ids=["one task", "several"])
def test_the_messages_in_the_pipeline_s_ranges_are_the_rows_of_the_source_in_their_order(
    spark, tmp_path, monkeypatch, cut
):
    """Planted: a range that ends a block too early; spools in another order; no task for an empty micro-batch."""
    for first, sizes in ((0, (3, 4)), (40, (5, 2))):
        fill(tmp_path / "spool" / "south", numbered(100 + first, *sizes))
        fill(tmp_path / "spool" / "north", numbered(first, *sizes))
    if cut:
        monkeypatch.setattr(data_source, "_ONE_TASK_BYTES", 0)
    options = Options({"path": str(tmp_path / "spool"), "maxOffsetsPerTrigger": "10", "minPartitions": "3"})
    reader, at, found, tasks = RangesStreamReader(options), {}, [], []
    while not found or at != SpoolTree(options.spools).latest():
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        partitions = reader.partitions(at, end)
        tasks.append(len(partitions))
        found += [messages for one in partitions for messages in messages_in(options, reader.read(one))]
        at = end
    assert (max(tasks) > 1) == cut and len(reader.partitions(at, at)) == 1
    messages = pa.Table.from_batches(found)
    assert messages.num_rows == 44
    rows = spark.read.format("mqtt").option("path", str(tmp_path / "spool")).load().toArrow()
    keys = [(name, "ascending") for name in ("collector", "segment", "position")]
    assert messages.sort_by(keys).to_pylist() == rows.sort_by(keys).to_pylist()
    for name in ("north", "south"):
        mine = messages.filter(pa.array([one == name for one in messages["collector"].to_pylist()]))
        assert (
            mine["payload"].to_pylist()
            == rows.filter(pa.array([one == name for one in rows["collector"].to_pylist()]))["payload"].to_pylist()
        )


def test_a_recreated_spool_stops_the_query_unless_loss_is_allowed(spark, tmp_path):
    fill(tmp_path / "spool" / "north", numbered(0, 2, 2))
    Query(spark, tmp_path).available_now()
    shutil.rmtree(tmp_path / "spool" / "north")
    fill(tmp_path / "spool" / "north", numbered(50, 4, 2))
    with pytest.raises(StreamingQueryException, match="was made anew"):
        Query(spark, tmp_path).available_now()
    assert Query(spark, tmp_path, failOnDataLoss="false").available_now() == [list(range(50, 58))]


def test_a_removed_segment_stops_the_query(spark, tmp_path):
    fill(tmp_path / "spool" / "north", numbered(0, 2, 2))
    Query(spark, tmp_path).available_now()
    fill(tmp_path / "spool" / "north", numbered(4, 2, 2))
    fill(tmp_path / "spool" / "north", numbered(8, 2, 2))
    segment_path(tmp_path / "spool" / "north", 1).unlink()
    with pytest.raises(StreamingQueryException, match=r"0000000001\.seg was removed before it was read"):
        Query(spark, tmp_path).available_now()


def test_committed_segments_are_kept_unless_retention_is_asked_for(spark, tmp_path):
    folder = tmp_path / "spool" / "north"
    for run in range(3):
        fill(folder, numbered(10 * run, 2, 2))
    Query(spark, tmp_path, maxOffsetsPerTrigger=4).available_now()
    assert SpoolView(folder).segments() == [0, 1, 2]
    shutil.rmtree(tmp_path / "checkpoint")
    batches = Query(spark, tmp_path, maxOffsetsPerTrigger=4, retentionHours=0).available_now()
    assert sum(map(len, batches)) == 12
    # Spark commits a micro-batch to the source when it builds the next, so the last one's segment stays.
    assert SpoolView(folder).segments()[0] >= 1


def test_a_start_that_is_not_there_stops_a_stream_before_it_is_in_the_checkpoint(tmp_path):
    fill(tmp_path / "north", numbered(0, 2, 2))
    latest = SpoolTree(tmp_path).latest()
    for wrong in ({"spool": "0" * 32}, {"segment": 7}, {"position": latest["north"]["position"] + 1}):
        place = json.dumps({"north": {**latest["north"], **wrong}})
        with pytest.raises(DataLoss, match=r"the spool .* (was made anew|ends before)"):
            MqttStreamReader(Options({"path": str(tmp_path), "startingOffsets": place})).initialOffset()
    for right in ("earliest", "latest", json.dumps(latest)):
        MqttStreamReader(Options({"path": str(tmp_path), "startingOffsets": right})).initialOffset()


def test_an_idle_stream_still_removes_what_its_last_micro_batch_committed(tmp_path, monkeypatch):
    for run in range(2):
        fill(tmp_path / "north", numbered(10 * run, 2, 2))
    tree = SpoolTree(tmp_path)
    reader = MqttStreamReader(Options({"path": str(tmp_path), "retentionHours": "0"}))
    assert 1 < data_source._REMOVE_EVERY_S < 60
    # However long this process is suspended here.
    monkeypatch.setattr(data_source, "_REMOVE_EVERY_S", 3600)
    assert reader.latestOffset(tree.latest(), ReadAllAvailable()) == tree.latest()
    assert SpoolView(tmp_path / "north").segments() == [0, 1], "not at every question"
    monkeypatch.setattr(data_source, "_REMOVE_EVERY_S", 0)
    reader.latestOffset(tree.earliest(), ReadAllAvailable())
    assert SpoolView(tmp_path / "north").segments() == [0, 1], "only what was committed"
    reader.latestOffset(tree.latest(), ReadAllAvailable())
    assert SpoolView(tmp_path / "north").segments() == [1]


def test_the_batch_reader_gives_every_column_exactly(spark, tmp_path):
    with Spool(tmp_path / "north") as spool:
        packets = [
            publish_packet(TOPIC, b"\x00\xff binary", 7, qos=1, dup=True),
            publish_packet("fleet/ü/telemetry", b"", qos=0),
            bytes((0x33,)) + publish_packet(TOPIC, b"r" * 200, 9)[1:],
        ]
        spool.append(b"".join(packets), 3, RECEIVED_MS)
        identity = spool.durable.spool
    rows = spark.read.format("mqtt").option("path", str(tmp_path)).load().toArrow().to_pylist()
    starts = [24, 24 + len(packets[0]), 24 + len(packets[0]) + len(packets[1])]
    common = {
        "received_ts": datetime.fromtimestamp(RECEIVED_MS / 1000, UTC),
        "collector": "north",
        "spool": identity,
        "segment": 0,
    }
    assert rows == [
        {
            "topic": TOPIC,
            "payload": b"\x00\xff binary",
            "qos": 1,
            "retain": False,
            "dup": True,
            "position": starts[0],
            **common,
        },
        {
            "topic": "fleet/ü/telemetry",
            "payload": b"",
            "qos": 0,
            "retain": False,
            "dup": False,
            "position": starts[1],
            **common,
        },
        {
            "topic": TOPIC,
            "payload": b"r" * 200,
            "qos": 1,
            "retain": True,
            "dup": False,
            "position": starts[2],
            **common,
        },
    ]


def test_headers_are_columns_in_a_stream_and_in_a_batch_if_they_are_asked_for(spark, tmp_path):
    """Planted: columns in another order; a struct of nulls for a message without properties."""
    full = encoder.properties(
        payload_format_indicator=1, message_expiry_interval=2**32 - 1, content_type=b"text/plain",
        response_topic=b"answers", correlation_data=b"\xff", subscription_identifier=[1, 2**28 - 1],
        user_property=[(b"site", b"\xff"), (b"site", b""), (b"", b"b")],
    )  # fmt: skip
    with Spool(tmp_path / "spool" / "north") as spool:
        spool.append(publish_packet(TOPIC, b"0"), 1, RECEIVED_MS)
        packets = [encoder.publish(TOPIC.encode(), b"1", 1, 1, properties=full)]
        packets.append(encoder.publish(TOPIC.encode(), b"2", properties=encoder.properties(content_type=b"")))
        packets.append(in_version_5(publish_packet(TOPIC, b"3")))
        spool.append(b"".join(packets), 3, RECEIVED_MS, 5)
    nothing = dict.fromkeys(HEADERS_ARROW_SCHEMA.field("properties").type.names)
    properties = {
        "payload_format_indicator": 1, "message_expiry_interval": 2**32 - 1, "content_type": "text/plain",
        "response_topic": "answers", "correlation_data": b"\xff", "subscription_identifiers": [1, 2**28 - 1],
        "undecoded": None,
    }  # fmt: skip
    headers = [{"key": key, "value": value} for key, value in (("site", b"\xff"), ("site", b""), ("", b"b"))]
    wanted = [(b"0", None, None), (b"1", headers, properties), (b"2", None, nothing | {"content_type": ""})]
    wanted.append((b"3", None, None))

    def read(frame) -> list[tuple]:
        assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
        names = ("payload", "headers", "properties")
        return sorted((tuple(row[name] for name in names) for row in frame.toArrow().to_pylist()), key=lambda r: r[0])

    batch = spark.read.format("mqtt").option("path", str(tmp_path / "spool"))
    assert "headers" not in batch.load().columns and batch.load().count() == 4
    assert read(batch.option("includeHeaders", "true").load()) == wanted
    assert batch.load().select("topic").distinct().count() == 1
    found: list[tuple] = []
    stream = spark.readStream.format("mqtt").option("path", str(tmp_path / "spool")).option("includeHeaders", True)
    sink = stream.load().writeStream.foreachBatch(lambda frame, _batch_id: found.extend(read(frame)))
    read_everything(sink.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert found == wanted


def test_the_batch_reader_takes_offsets(spark, tmp_path):
    fill(tmp_path / "north", numbered(0, 2, 2))
    middle = json.dumps(SpoolTree(tmp_path).latest())
    fill(tmp_path / "north", numbered(4, 2, 2))
    reader = spark.read.format("mqtt").option("path", str(tmp_path))

    def read(name: str, value: str) -> list[int]:
        return sorted(int(row.payload) for row in reader.option(name, value).load().collect())

    assert read("startingOffsets", middle) == [4, 5, 6, 7]
    assert spark.read.format("mqtt").option("path", str(tmp_path)).option("endingOffsets", middle).load().count() == 4
    assert read("startingOffsets", "latest") == []
    with pytest.raises(PySparkException, match="startingOffsets lies behind endingOffsets for north"):
        reader.option("startingOffsets", "latest").option("endingOffsets", middle).load().count()


def test_a_folder_is_found_by_its_url_too(spark, tmp_path):
    """Planted: file: is taken for an object store; %20 is not a space."""
    folder = tmp_path / "the spool, 50 % é"
    fill(folder / "north", numbered(0, 1, 3))
    path = folder.as_uri().removeprefix("file://")
    for url in (f"file://{path}", f"file:{path}", f"file://localhost{path}"):
        assert spark.read.format("mqtt").load(url).count() == 3, url


@needs_java
def test_a_local_spark_runs_the_source_where_no_environment_is_activated(tmp_path):
    """Planted: Spark's workers take python3 from PATH, which has no package of ours."""
    fill(tmp_path / "spool" / "north", numbered(0, 1, 3))
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False).getOrCreate()\n"
        "from spark_ingest import MqttDataSource\n"
        "spark.dataSource.register(MqttDataSource)\n"
        f"print(spark.read.format('mqtt').load({str(tmp_path / 'spool')!r}).count(), 'rows')\n"
    )
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=SPARK_LIMIT_S,
    )  # fmt: skip
    assert ended.stdout == "3 rows\n", ended.stderr[-3000:]


def test_topics_leaves_the_rows_of_those_topics_only(spark, tmp_path):
    names = ["fleet/a/telemetry", "fleet/a/log", "fleet/b/telemetry", "other"]
    with Spool(tmp_path / "north") as spool:
        spool.append(b"".join(publish_packet(name, b"x") for name in names * 2), 8, RECEIVED_MS)
    reader = spark.read.format("mqtt").option("path", str(tmp_path)).option("topics", "fleet/+/telemetry, other")
    assert sorted(row.topic for row in reader.load().collect()) == sorted(2 * [names[0], names[2], names[3]])


def test_the_progress_of_a_query_says_what_is_durable_and_from_it_follows_the_lag(spark, tmp_path):
    root = tmp_path / "spool"
    fill(root / "north", numbered(0, 4, 3))
    stream = spark.readStream.format("mqtt").option("path", str(root)).option("maxOffsetsPerTrigger", 3).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = read_everything(writer)
    latest = SpoolTree(root).latest()
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    places = [json.loads(source["latestOffset"])["north"] for source in sources]
    lags = [bytes_between(json.loads(source["endOffset"]), latest, root) for source in sources]
    assert places == [{**latest["north"], "lagBytes": lag} for lag in lags]
    block = latest["north"]["position"] // 4
    assert [round(lag / block) for lag in lags] == [3, 2, 1, 0]
    # What the progress shows can be given as an offset.
    again = spark.read.format("mqtt").option("path", str(root)).option("startingOffsets", sources[0]["latestOffset"])
    assert again.load().count() == 0


def test_a_micro_batch_waits_for_enough_messages_or_for_its_time(tmp_path, monkeypatch):
    """Planted: messages counted again at each look; a delay that starts again with each look."""
    now = 0.0
    monkeypatch.setattr(data_source.time, "monotonic", lambda: now)
    options = Options({"path": str(tmp_path), "minOffsetsPerTrigger": "10", "maxTriggerDelay": "30s"})
    fill(tmp_path / "north", numbered(0, 1, 4))
    reader = MqttStreamReader(options)
    start = reader.initialOffset()

    def look() -> int:
        nonlocal start
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        count = SpoolTree(tmp_path).messages(start, end)
        start = end
        return count

    assert [look(), look(), look()] == [0, 0, 0]
    fill(tmp_path / "south", numbered(0, 1, 5))
    assert look() == 0
    fill(tmp_path / "north", numbered(4, 1, 1))
    assert look() == 10
    fill(tmp_path / "north", numbered(5, 1, 4))
    now = 29.0
    assert [look(), look()] == [0, 0]
    now = 30.0
    assert look() == 4
    fill(tmp_path / "north", numbered(9, 1, 1))
    now = 59.0
    assert look() == 0, "the time is since the last micro-batch"
    reader.prepareForTriggerAvailableNow()
    assert look() == 1, "the rest, or the query would end without it"


def test_subscribePattern_takes_the_topics_that_match_as_a_whole(spark, tmp_path):
    """Planted: a pattern that may match a part of the topic."""
    names = ["fleet/a/telemetry", "fleet/a/telemetry/raw", "old/fleet/a/telemetry", "fleet/b7/telemetry"]
    with Spool(tmp_path / "north") as spool:
        spool.append(b"".join(publish_packet(name, b"x") for name in names), 4, RECEIVED_MS)
    reader = spark.read.format("mqtt").option("path", str(tmp_path)).option("subscribePattern", "fleet/[^/]+/telemetry")
    assert sorted(row.topic for row in reader.load().collect()) == [names[0], names[3]]


def test_timestamps_and_records_of_a_partition_hold_in_spark(spark, tmp_path):
    fill(tmp_path / "north", numbered(0, 6, 3))
    everything = spark.read.format("mqtt").option("path", str(tmp_path))
    some = everything.option("startingTimestamp", RECEIVED_MS + 1).option("endingTimestamp", RECEIVED_MS + 5)
    some = some.option("maxRecordsPerPartition", 7).load()
    assert sorted(int(row.payload) for row in some.collect()) == list(range(3, 15))
    assert some.rdd.getNumPartitions() == 2


@needs_java
def test_a_reader_that_spark_leaves_behind_says_nothing(tmp_path):
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("reader_left_behind.py"), tmp_path],
        capture_output=True, text=True, check=False, timeout=SPARK_LIMIT_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "what the reader said: ''\n"), ended.stderr[-3000:]


@pytest.mark.usefixtures("spark")
def test_a_process_that_has_started_spark_starts_scripts_that_import_what_is_beside_them(tmp_path):
    """Planted: PYTHONSAFEPATH, which Spark's workers need, stays in this process's environment."""
    (tmp_path / "beside.py").write_text("print('imported')")
    (tmp_path / "script.py").write_text("import beside")
    ended = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    assert ended.stdout == "imported\n", ended.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "needs option path"),
        ({"path": "x", "server": "https://h:1"}, "has no option server"),
        ({"path": "https://h:1/x"}, "does not begin the URL of an object store"),
        ({"path": "x", "topics": "fleet/#/log"}, "is not a topic filter"),
        ({"path": "x", "topics": "a,,b"}, "is not a topic filter"),
        ({"path": "x", "subscribePattern": "a("}, "is not a regular expression"),
        ({"path": "x", "subscribePattern": "a", "topics": "a"}, "give one of them"),
        ({"path": "x", "startingTimestamp": "2026-01-01"}, "startingTimestamp must be a whole number"),
        ({"path": "x", "startingTimestamp": str(2**70)}, r"from 1 to 2\*\*63 - 1"),
        ({"path": "x", "minPartitions": str(2**63)}, r"from 1 to 2\*\*63 - 1"),
        ({"path": "x", "startingTimestamp": "9" * 5000}, r"from 1 to 2\*\*63 - 1"),
        ({"path": "x", "endingTimestamp": str(RECEIVED_MS * 1000)}, "endingTimestamp must be in Unix milliseconds"),
        ({"path": "x", "startingTimestamp": "5", "endingTimestamp": "5"}, "is not before endingTimestamp"),
        ({"path": "x", "startingTimestamp": "5", "endingTimestamp": "4"}, "is not before endingTimestamp"),
        ({"path": "x", "subscribePattern": ""}, "subscribePattern is empty"),
        ({"path": "a\0b"}, "holds a character that no path has"),
        ({"path": "x", "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time"),
        ({"path": "x", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than maxOffsetsPerTrigger"),
        ({"path": "x", "endingOffsets": "earliest"}, "endingOffsets must be latest or an offset"),
        ({"path": "x", "maxOffsetPerTrigger": "5"}, "has no option maxoffsetpertrigger"),
        ({"path": "x", "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({"path": "x", "failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
        ({"path": "x", "includeHeaders": "1"}, "includeHeaders must be true or false"),
        ({"path": "x", "retentionHours": "-1"}, "retentionHours must be a number from 0"),
    ],
)
def test_a_wrong_option_is_named(options, line):
    with pytest.raises(UsageError, match=line):
        Options(options)
