"""What the demo shows: progress on a terminal while it runs, and the count at the end."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from umqtt_cli.console import results
from umqtt_kit.demo.count import Count


@dataclass
class State:
    """What the progress display shows."""

    phase: str = "starting"
    made: int = 0
    stored: int = 0
    online: int = 0
    devices: int = 0
    seconds: float = 0.0
    of_seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


def show_result(result: dict[str, object], count: Count, tables: Path, kept: Path) -> None:
    """Print the table at the end on stdout."""
    console = results()
    console.print(_result_table(result, count))
    if count.complete:
        console.print("Every reading made is in the table exactly once.", style="green")
    else:
        console.print("The table is not what the devices made.", style="bold red")
        for name, identities in count.examples.items():
            console.print(f"  {name}: {', '.join(identities)}", soft_wrap=True)
        console.print(f"  Everything is kept in {kept}: logs, ground truth, spool, tables.", soft_wrap=True)
    if result["report"]:
        console.print("\nThe report shows the outage and how it was made up for. Open it in a browser:")
        console.print(f"  {Path(str(result['report'])).as_uri()}", soft_wrap=True)
    _show_how_to_open(console, tables)


def progress(state: State) -> RenderableType:
    """Return a picture of the state."""
    numbers = Table.grid(padding=(0, 2))
    numbers.add_row("readings made", f"{state.made:,}")
    numbers.add_row("stored in the table", f"{state.stored:,}")
    numbers.add_row("in flight", f"{max(state.made - state.stored, 0):,}")
    numbers.add_row("devices online", f"{state.online} of {state.devices}")
    if state.of_seconds:
        numbers.add_row("time", f"{state.seconds:.0f} of {state.of_seconds:.0f} s")
    numbers.add_row("broken", Text(", ".join(state.broken), style="bold red") if state.broken else "nothing")
    return Group(Text(state.phase, style="bold"), numbers)


def _result_table(result: dict[str, object], count: Count) -> Table:
    table = Table(show_header=False, title="From the device to the table", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("virtual boards, simulated devices", f"{result['boards']}, {result['devices']}")
    table.add_row("readings made on the devices", f"{count.made:,}")
    table.add_row("rows in the table", f"{count.stored:,}")
    table.add_row("lost", _bad(count.lost))
    table.add_row("duplicated", _bad(count.duplicated))
    if result["refused"]:
        table.add_row("not made: outbox full", f"{result['refused']:,}")
    if count.not_made:
        table.add_row("rows that no device made", _bad(count.not_made))
    if count.quarantined:
        table.add_row("rows in quarantine", f"{count.quarantined:,}")
    table.add_row("faults", f"{result['faults']}")
    table.add_row("readings per second", f"{result['readings_per_second']:,.0f} over {result['seconds']:.0f} s")
    return table


def _bad(number: int) -> Text:
    return Text(f"{number:,}", style="bold red" if number else "green")


def _show_how_to_open(console: Console, tables: Path) -> None:
    python = Path(sys.executable)
    with contextlib.suppress(ValueError):
        python = python.relative_to(Path.cwd())
    pandas = f"from deltalake import DeltaTable; print(DeltaTable('{tables / 'silver'}').to_pandas())"
    spark = (
        "from pyspark.sql import SparkSession; from spark_ingest.sql import spark_views; "
        f"spark = SparkSession.builder.getOrCreate(); spark_views(spark, '{tables}'); "
        "spark.sql('SELECT device_id, health, readings FROM devices').show()"
    )
    console.print(f"\nThe tables are in {tables}. To open them:", soft_wrap=True)
    for command in (f'{python} -P -c "{pandas}"', f'{python} -P -c "{spark}"'):
        console.print(f"  {command}", soft_wrap=True)
