"""Shows the verdict on a run."""

from __future__ import annotations

from rich.table import Table

from umqtt_cli.console import results
from umqtt_kit.prove.check import Verdict
from umqtt_kit.prove.faults import KINDS


def show_verdict(verdict: Verdict) -> None:
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
        f"{count.made:,} readings made, {count.stored:,} rows: {count.lost} lost, {count.duplicated} doubled, "
        f"{count.not_made} that nobody made, {len(verdict.unanswered)} commands without an answer.",
        style="green" if verdict.holds else "bold red",
    )
    for line in verdict.unanswered:
        console.print(f"  {line}", soft_wrap=True, markup=False)
    for place, times in count.where_lost.items():
        console.print(f"  lost {place}: {times}")
    for name, identities in count.examples.items():
        console.print(f"  {name}: {', '.join(identities)}", soft_wrap=True, markup=False)
