"""A stream reader still busy when Spark is gone, which answers nobody: ``python reader_left_behind.py FOLDER``.

Prints what its process wrote to standard error.
"""

import os
import signal
import sys
import time
from pathlib import Path

from spark_helpers import alive, eventually_in_spark
from umqtt_testkit.waiting import eventually

from spark_ingest.pipeline.process import stop_session
from spark_ingest.pipeline.run.session import start_session
from spark_ingest.source.data_source import MqttDataSource, MqttStreamReader
from spark_ingest.source.options import Options

folder = Path(sys.argv[1])


class Busy(MqttStreamReader):
    def latestOffset(self, start: dict, limit: object) -> dict:
        java = os.getppid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT), 2)
        (folder / "new").write_text(str(os.getpid()))
        (folder / "new").rename(folder / "busy")
        while os.getppid() == java:
            time.sleep(0.02)
        return start


class BusyDataSource(MqttDataSource):
    def streamReader(self, schema: object) -> MqttStreamReader:
        return Busy(Options(self.options))


for name in ("scratch", "spool"):
    (folder / name).mkdir()
spark = start_session(folder / "scratch")
spark.dataSource.register(BusyDataSource)
stream = spark.readStream.format("mqtt").option("path", str(folder / "spool")).load()
stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
eventually_in_spark((folder / "busy").exists, "Spark asks for the latest offset")
stop_session(spark)
process = int((folder / "busy").read_text())
eventually(lambda: not alive(process), "the reader's process ends")
print("what the reader said:", repr((folder / "said").read_text()))
