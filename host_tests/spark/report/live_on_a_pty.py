"""Runs Live on this process's terminal or pipe, with a made-up pipeline; for test_live_progress.

argv: how many steps of 0.1 s, and the words that standard output gets.
"""

import subprocess
import sys
import time

from rich.console import Console

from spark_ingest.pipeline import live as live_module

status: dict[str, object] = {"state": "starting"}
live_module.LINE_S = 0.4
live = live_module.Live(Console(stderr=True), lambda: dict(status))
live.start()
time.sleep(0.3)
status.update(state="running", messages=0, rows_silver=0, rows_quarantined=0, duplicates=0, open_gaps=0)
live.say("ready")
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.1)
    status.update(messages=1000 * step, rows_silver=990 * step, last_batch_ms=187, lag_bytes=52_300)
    if step == 3:
        print("a remark from the pipeline", file=sys.stderr, flush=True)
        subprocess.run(["sh", "-c", "echo a remark from a child >&2"], check=True)
status.update(state="stopped", messages=12345, rows_silver=12321, rows_quarantined=7, duplicates=17)
status.update(open_gaps=2, alerts=1, gold_ms=41)
time.sleep(2 * live_module.LINE_S)  # Spark takes a while to end
live.stop()
print('{"state": "stopped"}', flush=True)
