"""Runs Live on this process's terminal or pipe, with a fake pipeline; for test_live_progress.

argv: the number of steps, and the words that standard output gets.
"""

import sys
import threading

from rich.console import Console

from spark_ingest.pipeline.run import panel as live_module

live_module.LINE_S = 0.02
status: dict[str, object] = {"state": "starting"}
looks = 0
looked = threading.Condition()


def look() -> dict[str, object]:
    global looks
    with looked:
        looks += 1
        looked.notify_all()
        return dict(status)


def passed(**changes: object) -> None:
    """Change the status, and wait until Live has shown it, which its second look proves."""
    with looked:
        status.update(changes)
        seen = looks + 2
        looked.wait_for(lambda: looks >= seen)


live = live_module.Live(Console(stderr=True), look)
live.start()
status.update(state="running", messages=0, rows_silver=0, rows_quarantined=0, duplicates=0, open_gaps=0)
live.ready()
passed(rows_in_silver=0)
for step in range(1, int(sys.argv[1]) + 1):
    passed(
        messages=1000 * step,
        rows_silver=990 * step,
        rows_in_silver=90 + 990 * step,
        last_batch_ms=187,
        rows_per_second=5347,
        lag_bytes=52_300,
    )
    if step == 3:
        print("a remark from the pipeline", file=sys.stderr, flush=True)
last = {"state": "stopped", "messages": 12345, "rows_silver": 12231, "rows_in_silver": 12321}
passed(**last, rows_quarantined=7, duplicates=17, open_gaps=2, alerts=1, gold_ms=41)
live.stop()
print('{"state": "stopped"}', flush=True)
