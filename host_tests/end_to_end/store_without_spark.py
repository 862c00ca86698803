"""A stand-in for Spark, for tests of other things: stores every record of the spool in the silver table, once.

Like `python -m spark_ingest.pipeline`, it prints `ready`, writes a status file, and ends cleanly at SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import Spools
from umqtt_cli.durable import replace_file

_EVERY_S = 0.1
_TELEMETRY = "/telemetry"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("spool", "tables", "checkpoint", "status"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("ready", flush=True)
    spools, stored, told, last = Spools(given.spool), set(), -1, False
    while not last:
        # What has arrived by the time of SIGTERM is stored.
        last = ended.wait(_EVERY_S)
        came = [one for name in spools.names() for one in messages(spools.view(name))]
        records = [json.loads(one.payload) for one in came if one.topic.endswith(_TELEMETRY)]
        # At QoS 1 a reading may be in the spool twice.
        if new := {(row["id"], row["boot"], row["seq"]) for row in records} - stored:
            columns = zip(*sorted(new), strict=True)
            table = dict(zip(("device_id", "boot", "seq"), (pa.array(column) for column in columns), strict=True))
            write_deltalake(str(given.tables / "silver"), pa.table(table), mode="append")
            stored |= new
        if len(records) != told:
            told = len(records)
            status = {"messages": told, "rows_silver": len(stored), "lag_bytes": 0}
            replace_file(given.status, json.dumps(status).encode(), durable=False)


if __name__ == "__main__":
    main()
