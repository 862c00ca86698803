"""A collector that is killed (SIGKILL) right after its N-th append has become durable, before the PUBACK.

``python collector_dies.py N`` and the collector's own arguments.
"""

import os
import signal
import sys

from spark_ingest import collector
from spark_ingest.spool import Spool


class DyingSpool(Spool):
    appends_left = int(sys.argv[1])

    def append(self, data: bytes, count: int, received_ms: int) -> None:
        super().append(data, count, received_ms)
        DyingSpool.appends_left -= 1
        if not DyingSpool.appends_left:
            os.kill(os.getpid(), signal.SIGKILL)


collector.Spool = DyingSpool  # pyright: ignore[reportPrivateImportUsage]
sys.exit(collector.main(sys.argv[2:]))
