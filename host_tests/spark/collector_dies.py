"""A collector that is killed (SIGKILL) right after its N-th append has become durable, before the PUBACK.

``python collector_dies.py N`` and the collector's own arguments.
"""

import os
import signal
import sys

from spark_ingest.collector import command, process
from spark_ingest.spool.writer import Spool


class DyingSpool(Spool):
    appends_left = int(sys.argv[1])

    def append(self, data: bytes, count: int, received_ms: int, level: int) -> None:
        super().append(data, count, received_ms, level)
        DyingSpool.appends_left -= 1
        if not DyingSpool.appends_left:
            os.kill(os.getpid(), signal.SIGKILL)


run = process.run
process.run = lambda config: run(config, open_spool=DyingSpool)
sys.exit(command.main(sys.argv[2:]))
