"""``format("mqtt")`` in real Spark: resuming, AvailableNow, limits, loss, columns."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from spark_helpers import RECEIVED_MS, TOPIC, fill, publish_packet
from test_offsets import numbered

from spark_ingest.offsets import SpoolTree
from spark_ingest.spool import Spool
from spark_ingest.spool_format import segment_path
from spark_ingest.spool_reader import SpoolView


class Query:
    """A query over `path` that gathers its payloads, micro-batch by micro-batch."""

    def __init__(self, spark, folder: Path, **options: object) -> None:
        self._spark = spark
        self._options = {"path": str(folder / "spool"), **options}
        self._checkpoint = str(folder / "checkpoint")

    def available_now(self) -> list[list[int]]:
        """Run until everything is read; the payloads of each micro-batch, as numbers, sorted."""
        batches: list[list[int]] = []

        def gather(frame, _batch_id: int) -> None:
            batches.append(sorted(int(p) for p in frame.toArrow()["payload"].to_pylist()))

        stream = self._spark.readStream.format("mqtt").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(gather).option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        return [batch for batch in batches if batch]


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


def test_the_batch_reader_gives_every_column_exactly(spark, tmp_path):
    with Spool(tmp_path / "north") as spool:
        packets = [
            publish_packet(TOPIC, b"\x00\xff binary", 7, qos=1, dup=True),
            publish_packet("fleet/ü/telemetry", b"", qos=0),
            bytes((0x33,)) + publish_packet(TOPIC, b"r" * 200, 9)[1:],
        ]
        spool.append(b"".join(packets), 3, RECEIVED_MS)
        identity = spool.uuid
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


def test_the_batch_reader_takes_offsets(spark, tmp_path):
    import json

    fill(tmp_path / "north", numbered(0, 2, 2))
    middle = json.dumps(SpoolTree(tmp_path).latest())
    fill(tmp_path / "north", numbered(4, 2, 2))
    reader = spark.read.format("mqtt").option("path", str(tmp_path))

    def read(name: str, value: str) -> list[int]:
        return sorted(int(row.payload) for row in reader.option(name, value).load().collect())

    assert read("startingOffsets", middle) == [4, 5, 6, 7]
    assert spark.read.format("mqtt").option("path", str(tmp_path)).option("endingOffsets", middle).load().count() == 4
    assert read("startingOffsets", "latest") == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "needs option path"),
        ({"path": "x", "maxOffsetPerTrigger": "5"}, "has no option maxoffsetpertrigger"),
        ({"path": "x", "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({"path": "x", "failOnDataLoss": "no"}, "must be true or false"),
        ({"path": "x", "retentionHours": "-1"}, "retentionHours must be a number from 0"),
    ],
)
def test_a_wrong_option_is_named(options, line):
    from spark_ingest.errors import UsageError
    from spark_ingest.source import Options

    with pytest.raises(UsageError, match=line):
        Options(options)
