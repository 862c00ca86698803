"""Runs Live on this process's terminal or pipe, with a fake pipeline and its clock; for test_live_progress.

argv: the number of steps of a second, and the words that standard output gets.
"""

import sys
import threading

from rich.console import Console

from spark_ingest.pipeline.run import panel as live_module

live_module.LOOK_S = 0.02
live_module.PANELS_PER_SECOND = 50.0
live_module.LINE_S = 4.0
status: dict[str, object] = {"state": "starting"}
now = 0.0
looks = 0
looked = threading.Condition()


def look() -> dict[str, object]:
    global looks
    with looked:
        looks += 1
        looked.notify_all()
        return dict(status)


def passed(seconds: float, **changes: object) -> None:
    """Change the status, let time pass, and wait until Live has shown it, which its second look proves."""
    global now
    with looked:
        status.update(changes)
        now += seconds
        seen = looks + 2
        looked.wait_for(lambda: looks >= seen)


live = live_module.Live(Console(stderr=True), look, clock=lambda: now)
live.start()
status.update(state="running", messages=0, rows_silver=0, rows_quarantined=0, duplicates=0, open_gaps=0)
live.ready()
passed(0, rows_in_silver=0)
for step in range(1, int(sys.argv[1]) + 1):
    passed(
        1,
        messages=1000 * step,
        rows_silver=990 * step,
        rows_in_silver=90 + 990 * step,
        last_batch_ms=187,
        lag_bytes=52_300,
    )
    if step == 3:
        print("a remark from the pipeline", file=sys.stderr, flush=True)
last = {
    "state": "stopped",
    "messages": 12345,
    "rows_silver": 12231,
    "rows_in_silver": 12321,
    "rows_quarantined": 7,
    "duplicates": 17,
}
last |= {"rows_quarantined": 7, "duplicates": 17, "open_gaps": 2}
passed(2 * live_module.LINE_S, **last, alerts=1, gold_ms=41)  # Spark takes a while to end
live.stop()
print('{"state": "stopped"}', flush=True)
