"""Shows the verdict on a run."""

from __future__ import annotations

from rich.table import Table

from umqtt_cli.console import results
from umqtt_kit.prove.brokers import Broker
from umqtt_kit.prove.check import Verdict
from umqtt_kit.prove.faults import KINDS


def show_verdict(verdict: Verdict, broker: Broker) -> None:
    """Print the faults that came about, and the count, on stdout."""
    console = results()
    faults = Table(title="What broke", title_justify="left")
    for name in ("fault", "times", "what it does"):
        faults.add_column(name, justify="right" if name == "times" else "left")
    for kind, times in verdict.seen.items():
        faults.add_row(kind, str(times), KINDS[kind].what)
    console.print(faults)
    for name, times in verdict.missed.items():
        console.print(f"did not come about: {name}, {times} times")
    for line in verdict.ended:
        console.print(f"ended by itself and was started again: {line}", style="yellow", soft_wrap=True, markup=False)
    count = verdict.count
    console.print(
        f"{broker.name}: {count.made:,} readings made, {count.stored:,} rows: {count.lost} lost, {count.duplicated} "
        f"doubled, {count.not_made} that nobody made, {len(verdict.disordered)} devices out of order; "
        f"{len(verdict.unanswered)} commands without an answer, {len(verdict.repeated)} carried out twice; "
        f"{len(verdict.alerts)} wrong alerts, {len(verdict.silent)} devices away.{_not_ours(verdict, broker)}",
        style="green" if verdict.holds else "bold red",
        soft_wrap=True,
    )
    lines = [f"out of order: {device}" for device in verdict.disordered]
    lines += [f"carried out twice: {command}" for command in verdict.repeated]
    lines += [f"should never run: {version}" for version in verdict.versions]
    lines += [f"did not come back: {device}" for device in verdict.silent]
    for line in (*verdict.unanswered, *verdict.alerts, *lines):
        console.print(f"  {line}", soft_wrap=True, markup=False)
    for place, times in count.where_lost.items():
        console.print(f"  lost {place}: {times}")
    for name, identities in count.examples.items():
        console.print(f"  {name}: {', '.join(identities)}", soft_wrap=True, markup=False)


def _not_ours(verdict: Verdict, broker: Broker) -> str:
    """Return what the broker does not do, and what was lost to it or to flipped bits; "" if there is nothing to say."""
    said = [f"{verdict.flipped} lost to flipped bits"] if verdict.flipped else []
    if verdict.of_broker and (verdict.count.lost or verdict.unanswered):
        why = {broker.may_lose[kind] for kind in verdict.seen if kind in broker.may_lose}
        said.append(f"{broker.name} may have lost what is missing: {', '.join(sorted(why))}")
    if verdict.reordered:
        said.append(f"{broker.name} reordered the readings of {', '.join(verdict.reordered)}")
    said += broker.differs
    said += [f"left out: {kind}, since {why}" for kind, why in broker.without.items()]
    return f" ({'; '.join(said)})" if said else ""
