"""A collector with one planted mistake, for tests that must catch it: ``python planted.py MISTAKE …arguments``.

swallow   treats a failed append as a success
forget    acknowledges every second group without storing it
"""

import contextlib
import itertools
import sys

from spark_ingest.collector import command
from spark_ingest.errors import SpoolWriteFailed
from spark_ingest.spool import writer

append = writer.Spool.append


def swallow() -> None:
    def append_or_not(self: writer.Spool, data: bytes, count: int, received_ms: int, level: int) -> None:
        with contextlib.suppress(SpoolWriteFailed):
            append(self, data, count, received_ms, level)

    writer.Spool.append = append_or_not


def forget() -> None:
    groups = itertools.count(1)

    def append_most(self: writer.Spool, data: bytes, count: int, received_ms: int, level: int) -> None:
        if next(groups) % 2:
            append(self, data, count, received_ms, level)

    writer.Spool.append = append_most


{"swallow": swallow, "forget": forget}[sys.argv[1]]()
sys.exit(command.main(sys.argv[2:]))
