"""umqtt demo: runs the whole chain on this machine, and counts at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from spark_ingest.java import require_java
from umqtt_cli.console import live_display, say
from umqtt_cli.errors import EXIT_LOST, EXIT_MISSING, EXIT_USAGE, KitError
from umqtt_cli.numbers import Finite
from umqtt_cli.requirements import require_module
from umqtt_kit.processes import interruptible

_OUTAGE_S = 5.0
_LONGEST_OUTAGE_SHARE = 0.5


@click.command()
@click.option(
    "--seconds",
    type=Finite(1, 86_400),
    default=45,
    show_default=True,
    help="How long readings are taken.",
)
@click.option(
    "--boards",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Virtual boards: real MicroPython, each with its own flash.",
)
@click.option(
    "--devices",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    help="Simulated devices: the same client under CPython.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("umqtt-demo"),
    show_default=True,
    help="Folder for logs, tables and report.html; an earlier demo in it is replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def demo(seconds: float, boards: int, devices: int, out: Path, as_json: bool) -> int:
    """Run the whole chain on this machine, and count the readings.

    In the middle every device's network is cut for 5 s.

    Broker, collector, Spark, virtual boards and simulated devices run on this machine, on free ports of the loopback
    interface. At the end it names a report, an HTML page that shows the outage. Exits with 1 if a reading is lost or
    duplicated. Ctrl-C stops everything.

    \b
    Example:
      umqtt demo --seconds 20 --boards 2 --devices 50 --json
    """
    if boards + devices == 0:
        raise KitError("--boards 0 --devices 0 leaves nothing to count — ask for at least one of them", EXIT_USAGE)
    require_module("pyspark")
    require_java()
    # These import the device library, the test kit and rich, so they come after the checks, which are to answer at
    # once.
    from umqtt_kit.demo.boards import missing_micropython
    from umqtt_kit.demo.plan import Plan, RunFolder
    from umqtt_kit.demo.run import Demo
    from umqtt_kit.demo.view import progress, show_result
    from umqtt_kit.prove.faults import NETWORK, Fault

    outage_s = min(_OUTAGE_S, seconds * _LONGEST_OUTAGE_SHARE)
    outage = Fault(1, (seconds - outage_s) / 2, outage_s, "refuse", NETWORK)
    plan = Plan(seconds, boards, devices, (outage,))
    missing = missing_micropython() if boards else None
    if missing:
        if not devices:
            raise KitError(f"--boards {boards}: {missing}", EXIT_MISSING)
        say(f"simulated devices only: {missing}")
        plan = replace(plan, boards=0)
    with interruptible(), RunFolder(out) as folder:
        with live_display() as display:
            demo = Demo(plan, folder, lambda state: display and display(progress(state)))
            result, counted = demo.run()
        if as_json:
            click.echo(json.dumps(result))
        else:
            show_result(result, counted, folder.tables, folder.path)
    return 0 if counted.complete else EXIT_LOST
