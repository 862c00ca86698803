"""umqtt prove: breaks the whole chain by a seed, and counts at the end."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_ingest.java import require_java
from umqtt_cli.console import live_display, say
from umqtt_cli.errors import EXIT_LOST, EXIT_MISSING, EXIT_USAGE, KitError
from umqtt_cli.numbers import Finite
from umqtt_cli.requirements import require_module
from umqtt_kit.processes import interruptible

if TYPE_CHECKING:
    from umqtt_kit.demo.plan import Plan
    from umqtt_kit.prove.check import Verdict
    from umqtt_kit.prove.faults import Fault


@click.command()
@click.option("--minutes", type=Finite(0.1, 1440), default=10, show_default=True, help="How long things break.")
@click.option("--seed", type=click.IntRange(0), help="Repeat a run; without it a new one is drawn.")
@click.option("--boards", type=click.IntRange(1, 50), default=3, show_default=True, help="Virtual boards.")
@click.option("--devices", type=click.IntRange(0, 2000), default=20, show_default=True, help="Simulated devices.")
@click.option(
    "--without", multiple=True, metavar="KIND", help="Leave a kind of fault out; may be given more than once."
)
@click.option(
    "--broker",
    default="paired",
    show_default=True,
    metavar="NAME",
    help="paired, redis (the paired one on it), mosquitto, rabbitmq, nats, or cloud:NAME.",
)
@click.option("--faults", "numbers", metavar="N,N,…", help="Only the faults of these numbers in the plan.")
@click.option("--shrink", is_flag=True, help="After a failure, halve the faults as long as it fails.")
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
    broker: str,
    numbers: str | None,
    shrink: bool,
    keep: Path | None,
    as_json: bool,
) -> int:
    """Break every part of the chain by a seed, several at once, and count the readings.

    Virtual boards and simulated devices publish through a network that breaks; power, broker, collector and Spark are
    cut, killed and stopped. Then everything works again, and what was made is compared with what the tables hold. The
    same seed breaks the same things at the same times. Exits with 1 if a reading is lost, doubled, made up or out of
    order, if a command was not carried out once and answered, if an alert is wrong, or if a device stays away. Linux
    only.

    \b
    Example:
      umqtt prove --minutes 1 --seed 7
    """
    require_module("pyspark")
    require_java()
    if not sys.platform.startswith("linux"):
        raise KitError("prove stops and limits processes in ways that only Linux has", EXIT_MISSING)
    from umqtt_kit.demo.boards import board_ids, missing_micropython
    from umqtt_kit.demo.plan import Plan
    from umqtt_kit.prove.brokers import broker_of
    from umqtt_kit.prove.faults import KINDS, faults_of
    from umqtt_kit.prove.machines import ON_MACHINES, missing_machines
    from umqtt_kit.prove.view import show_verdict

    if unknown := set(without) - KINDS.keys():
        raise KitError(f"--without {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}", EXIT_USAGE)
    if missing := missing_micropython():
        raise KitError(f"no virtual boards: {missing}", EXIT_MISSING)
    kind = broker_of(broker)
    seed = random.randrange(1_000_000) if seed is None else seed
    say(f"seed {seed}")
    leave_out = {*without, *kind.without}
    if missing := missing_machines():
        say(f"without faults of clocks and of un-synced files: {missing}")
        leave_out |= ON_MACHINES
    seconds = minutes * 60
    faults = tuple(faults_of(seed, seconds, board_ids(boards), leave_out))
    if numbers:
        faults = _chosen(faults, numbers)
    folder = keep or Path(tempfile.mkdtemp(prefix="umqtt-prove-"))
    plan = Plan(seconds, boards, devices, faults, proves=True, broker=kind)
    verdict, failed = _run(plan, folder)
    if verdict and as_json:
        click.echo(json.dumps({"seed": seed, "broker": broker, "holds": verdict.holds, **asdict(verdict)}))
    elif verdict:
        show_verdict(verdict, kind)
    if not failed:
        if keep is None:
            shutil.rmtree(folder)
        return 0
    again = f"umqtt prove --minutes {minutes:g} --seed {seed} --boards {boards} --devices {devices} --broker {broker}"
    again += "".join(f" --without {name}" for name in without)
    say(f"{failed} — kept in {folder} — again: {again}{f' --faults {numbers}' if numbers else ''}")
    if shrink:
        left = _shrunk(plan)
        say(f"it fails with {len(left)} of {len(faults)} faults: {again} --faults {_numbers(left)}")
    return EXIT_LOST


def _run(plan: Plan, folder: Path) -> tuple[Verdict | None, str]:
    """Run a plan; return its verdict, None if the chain itself failed, and in a line what failed; "" if nothing did."""
    from umqtt_kit.demo.plan import RunFolder
    from umqtt_kit.demo.run import Demo
    from umqtt_kit.demo.view import progress
    from umqtt_kit.prove.check import check

    with interruptible(), RunFolder(folder) as run, live_display() as display:
        demo = Demo(plan, run, lambda state: display and display(progress(state)))
        try:
            demo.run()
        except KitError as error:
            return None, str(error)
        verdict = check(run.path, demo.unanswered, demo.silent, plan.broker.may_lose, plan.broker.reorders)
    return verdict, "" if verdict.holds else "it does not hold"


def _chosen(faults: Sequence[Fault], numbers: str) -> tuple[Fault, ...]:
    try:
        wanted = {int(number) for number in numbers.split(",")}
    except ValueError:
        raise KitError(f"--faults {numbers}: give numbers with commas between, like 3,7,12", EXIT_USAGE) from None
    if unknown := wanted - {fault.number for fault in faults}:
        raise KitError(f"--faults {min(unknown)}: the plan has {len(faults)} faults", EXIT_USAGE)
    return tuple(fault for fault in faults if fault.number in wanted)


def _shrunk(plan: Plan) -> tuple[Fault, ...]:
    """Return the smallest of the halves, of halves and so on, with which a plan still fails."""
    left = plan.faults
    while len(left) > 1:
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            say(f"trying {len(half)} faults: {_numbers(half)}")
            with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
                if _run(replace(plan, faults=half), Path(folder))[1]:
                    left = half
                    break
        else:
            break
    return left


def _numbers(faults: Sequence[Fault]) -> str:
    return ",".join(str(fault.number) for fault in faults)
