"""The sink in real Spark: a killed task and a killed driver lose no row, and nothing shows the password."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from spark_helpers import SPARK_LIMIT_S, Process, fill
from test_offsets import numbered
from test_sink import publishes
from test_source import read_everything
from umqtt_testkit.peer import ScriptedPeer

from spark_ingest import MqttDataSource
from spark_ingest.source.sink import MqttStreamWriter, SinkOptions

COUNT = 60
ALL = {b"%d" % i for i in range(COUNT)}
PASSWORD = "this-password-must-not-be-seen"
DRIVER = """
import sys
from pathlib import Path
from spark_ingest import MqttDataSource
from spark_ingest.pipeline.run.session import start_session
folder, url = Path(sys.argv[1]), sys.argv[2]
(folder / "scratch").mkdir(exist_ok=True)
spark = start_session(folder / "scratch")
spark.dataSource.register(MqttDataSource)
rows = spark.readStream.format("mqtt").option("path", str(folder / "spool")).load().select("topic", "payload")
sink = rows.writeStream.format("mqtt").option("broker", url).option("window", 10)
sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
print("done", flush=True)
"""


def broker(
    acknowledged: list[bytes], *limits: int, when_silent: Callable[[], object] = lambda: None
) -> Callable[[ScriptedPeer], None]:
    """Return a script with a link for each limit, which acknowledges that many messages and no more."""

    def script(peer: ScriptedPeer) -> None:
        for limit in limits:
            link = peer.accept()
            link.accept_session()
            for packet in publishes(link):
                if limit:
                    limit -= 1
                    acknowledged.append(packet.payload)
                    link.answer(packet)
                else:
                    when_silent()

    return script


def test_a_killed_task_loses_no_row_and_what_is_committed_is_not_published_again(spark, tmp_path):
    """That a task waits for the broker is test_sink.py's law; this tests Spark's side. Planted: half of the rows."""
    fill(tmp_path / "spool" / "north", numbered(0, 6, COUNT // 6))
    killed = tmp_path / "killed"

    class DyingWriter(MqttStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]):
            def one_by_one() -> Iterator[pa.RecordBatch]:
                for batch in iterator:
                    for index in range(batch.num_rows):
                        if index == COUNT // 2 and not killed.exists():
                            killed.touch()
                            os.kill(os.getpid(), signal.SIGKILL)
                        yield batch.slice(index, 1)

            return super().write(one_by_one())

    class DyingSink(MqttDataSource):
        @classmethod
        def name(cls) -> str:
            return "mqtt-dying"

        def streamWriter(self, schema, overwrite):
            return DyingWriter(SinkOptions(self.options, schema))

    spark.dataSource.register(DyingSink)
    acknowledged: list[bytes] = []
    with ScriptedPeer(timeout_s=SPARK_LIMIT_S) as peer:
        peer.run(broker(acknowledged, COUNT, COUNT))
        rows = spark.readStream.format("mqtt").option("path", str(tmp_path / "spool")).load()
        sink = rows.select("topic", "payload").writeStream.format("mqtt-dying").option("broker", peer.url)
        sink = sink.option("window", 10).option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(StreamingQueryException):
            read_everything(sink)
        assert killed.exists() and 0 < len(acknowledged) < COUNT
        read_everything(sink)
        peer.join()
        assert set(acknowledged) == ALL
        # Nothing would accept another connection.
        read_everything(sink)


@pytest.mark.skipif(not os.environ.get("UMQTT_FULL_SWEEPS"), reason="three starts of Java: in `make prove-tests`")
def test_a_killed_driver_loses_no_row_and_what_is_committed_is_not_published_again(tmp_path):
    """One acknowledgement is missing when it dies. Planted: half of the rows."""
    fill(tmp_path / "spool" / "north", numbered(0, 6, COUNT // 6))
    acknowledged: list[bytes] = []
    is_silent = threading.Event()
    with ScriptedPeer(timeout_s=SPARK_LIMIT_S) as peer:
        command = [sys.executable, "-c", DRIVER, tmp_path, peer.url]
        peer.run(broker(acknowledged, COUNT - 1, COUNT, when_silent=is_silent.set))
        with Process(command) as driver:
            assert is_silent.wait(SPARK_LIMIT_S)
            os.killpg(driver.pid, signal.SIGKILL)
        assert len(acknowledged) == COUNT - 1
        with Process(command) as driver:
            driver.wait_for_line("done", SPARK_LIMIT_S)
        peer.join()
        assert acknowledged[COUNT - 1 :] == acknowledged[: COUNT - 1] + sorted(ALL - set(acknowledged[: COUNT - 1]))
        with Process(command) as driver:
            driver.wait_for_line("done", SPARK_LIMIT_S)


def test_a_batch_of_several_partitions_is_published_and_overwriting_is_refused(spark):
    payloads = [b"%d" % i for i in range(30)]
    frame = spark.createDataFrame([(bytearray(each),) for each in payloads], "payload binary").repartition(3)
    acknowledged: list[bytes] = []
    with ScriptedPeer(timeout_s=SPARK_LIMIT_S) as peer:
        peer.run(broker(acknowledged, 30, 30, 30))
        writer = frame.write.format("mqtt").option("broker", peer.url).option("topic", "out")
        with pytest.raises(PySparkException, match="cannot overwrite what was published"):
            writer.mode("overwrite").save()
        writer.mode("append").save()
    assert sorted(acknowledged) == sorted(payloads)


def test_the_password_is_in_no_plan_and_in_no_error(spark, tmp_path, capfd):
    password_file: Path = tmp_path / "password"
    password_file.write_text(PASSWORD)
    frame = spark.createDataFrame([("out", "x")], "topic string, payload string")
    refused: list[bytes | None] = []
    with ScriptedPeer(timeout_s=SPARK_LIMIT_S) as peer:
        peer.run(lambda peer: refused.append(peer.accept().accept_session(return_code=4).password))
        writer = frame.write.format("mqtt").option("broker", peer.url).option("username", "u")
        with pytest.raises(PySparkException, match="refused the sink: bad user name or password") as error:
            writer.option("passwordFile", str(password_file)).mode("append").save()
    assert refused == [PASSWORD.encode()]
    assert PASSWORD not in "".join(capfd.readouterr()) + str(error.value)
