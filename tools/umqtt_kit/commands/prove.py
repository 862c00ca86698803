"""umqtt prove: breaks the whole chain by a seed, and counts at the end."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from spark_ingest.java import require_java
from umqtt_cli.console import live_display, say
from umqtt_cli.errors import EXIT_LOST, EXIT_MISSING, EXIT_USAGE, KitError
from umqtt_cli.numbers import Finite
from umqtt_cli.requirements import require_module
from umqtt_kit.processes import interruptible


@click.command()
@click.option("--minutes", type=Finite(0.1, 1440), default=10, show_default=True, help="How long things break.")
@click.option("--seed", type=click.IntRange(0), help="Repeat a run; without it a new one is drawn.")
@click.option("--boards", type=click.IntRange(1, 50), default=3, show_default=True, help="Virtual boards.")
@click.option("--devices", type=click.IntRange(0, 2000), default=20, show_default=True, help="Simulated devices.")
@click.option(
    "--without", multiple=True, metavar="KIND", help="Leave a kind of fault out; may be given more than once."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for everything of the run; without it that is kept only if the proof fails.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def prove(
    minutes: float,
    seed: int | None,
    boards: int,
    devices: int,
    without: tuple[str, ...],
    keep: Path | None,
    as_json: bool,
) -> int:
    """Break every part of the chain by a seed, several at once, and count the readings.

    Virtual boards and simulated devices publish through a network that breaks; power, broker, collector and Spark are
    cut, killed and stopped. Then everything works again, and what was made is compared with what the tables hold. The
    same seed breaks the same things at the same times. Exits with 1 if a reading is lost, doubled or made up, or a
    command was not answered. Linux only.

    \b
    Example:
      umqtt prove --minutes 1 --seed 7
    """
    require_module("pyspark")
    require_java()
    if not sys.platform.startswith("linux"):
        raise KitError("prove stops and limits processes in ways that only Linux has", EXIT_MISSING)
    from umqtt_kit.demo.boards import board_ids, missing_micropython
    from umqtt_kit.demo.plan import Plan, RunFolder
    from umqtt_kit.demo.run import Demo
    from umqtt_kit.demo.view import progress
    from umqtt_kit.prove.check import check
    from umqtt_kit.prove.faults import KINDS, faults_of
    from umqtt_kit.prove.view import show_verdict

    if unknown := set(without) - KINDS.keys():
        raise KitError(f"--without {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}", EXIT_USAGE)
    if missing := missing_micropython():
        raise KitError(f"no virtual boards: {missing}", EXIT_MISSING)
    seed = random.randrange(1_000_000) if seed is None else seed
    say(f"seed {seed}")
    seconds = minutes * 60
    faults = tuple(faults_of(seed, seconds, board_ids(boards), without))
    folder = keep or Path(tempfile.mkdtemp(prefix="umqtt-prove-"))
    with interruptible(), RunFolder(folder) as run:
        with live_display() as display:
            plan = Plan(seconds, boards, devices, faults, proves=True)
            demo = Demo(plan, run, lambda state: display and display(progress(state)))
            demo.run()
        verdict = check(run.ground_truth, run.tables, run.history, demo.unanswered)
    if as_json:
        click.echo(json.dumps({"seed": seed, "holds": verdict.holds, **asdict(verdict)}))
    else:
        show_verdict(verdict)
    if verdict.holds:
        if keep is None:
            shutil.rmtree(folder)
        return 0
    again = f"umqtt prove --minutes {minutes:g} --seed {seed} --boards {boards} --devices {devices}"
    say(f"kept in {folder} — again: {again}{''.join(f' --without {kind}' for kind in without)}")
    return EXIT_LOST
