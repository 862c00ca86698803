"""Stands for Spark where a test is not about Spark: stores every record of the spool in the silver table, once.

As `python -m spark_ingest.pipeline`: says `ready`, writes a status file, ends in order with SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from spark_ingest.durable import replace_file
from spark_ingest.spool.access import LocalSpools
from spark_ingest.spool.messages import messages

_EVERY_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("spool", "tables", "checkpoint", "status"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("ready", flush=True)
    spools, done, told, last = LocalSpools(given.spool), 0, -1, False
    while not last:
        # What has come when the end is asked for is stored.
        last = ended.wait(_EVERY_S)
        records = [json.loads(one.payload) for name in spools.names() for one in messages(spools.view(name))]
        if rows := records[done:]:
            table = {
                "device_id": pa.array([row["id"] for row in rows], pa.string()),
                "boot": pa.array([row["boot"] for row in rows], pa.string()),
                "seq": pa.array([row["seq"] for row in rows], pa.int64()),
            }
            write_deltalake(str(given.tables / "silver"), pa.table(table), mode="append")
        done = len(records)
        if done != told:
            told = done
            status = {"messages": done, "rows_silver": done, "lag_bytes": 0}
            replace_file(given.status, json.dumps(status).encode(), durable=False)


if __name__ == "__main__":
    main()
