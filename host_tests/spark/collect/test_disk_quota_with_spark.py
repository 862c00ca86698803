"""The law of a bounded spool with a real reader: Spark's commits make room, and everything passes through."""

import pytest
from spark_helpers import TOPIC, collector_process, eventually_in_spark, record, status
from umqtt_testkit.waiting import eventually

from spark_ingest.spool.view import Spools

# Twice what the spool may contain.
MESSAGES = [(TOPIC, record("pump", "1-a", seq, filler="x" * 300)) for seq in range(500)]


@pytest.mark.tier(2)
def test_a_spool_a_fraction_of_the_load_is_emptied_by_sparks_commits_until_all_has_passed(
    spark, mosquitto, publish, tmp_path
):
    root, state = tmp_path / "spool", tmp_path / "status.json"
    passed: list[bytes] = []
    limits = ["--max-spool-bytes", "96K", "--group-bytes", "4K", "--status", state]
    with collector_process(mosquitto, root, "north", *limits) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        # Full before anybody reads, so that Spark finds a spool that does not change.
        eventually(lambda: status(state)["waiting"], "a full spool")
        stream = spark.readStream.format("mqtt").option("path", str(root)).option("retentionHours", 0).load()

        def gather(frame, _batch_id: int) -> None:
            passed.extend(frame.toArrow()["payload"].to_pylist())

        writer = stream.writeStream.foreachBatch(gather).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="200 milliseconds").start()
        try:
            eventually_in_spark(lambda: len(set(passed)) == len(MESSAGES) or query.exception(), "everything in Spark")
            assert query.exception() is None
        finally:
            query.stop()
        assert one.terminate()[0] == 0
    assert set(passed) == {payload for _, payload in MESSAGES}
    assert Spools(root).view("north").segments()[0] > 4, "what was read was removed"
