"""umqtt report: writes the state of the fleet into one HTML file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from spark_ingest.location import Location, PathOption, TablesOption
from umqtt_cli.console import results, say
from umqtt_cli.numbers import Finite
from umqtt_cli.requirements import require_module


@click.command()
@click.option(
    "--tables",
    required=True,
    type=TablesOption(),
    help="Folder or URL of the tables, as given to umqtt ingest.",
)
@click.option(
    "--out",
    type=PathOption(dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write; one that is there is replaced.",
)
@click.option(
    "--days",
    type=Finite(min=0, min_open=True, max=36_500),
    default=7,
    show_default=True,
    help="How far back the charts reach, from the newest reading.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the page sums up as one JSON object.")
def report(tables: Location, out: Path, days: float, as_json: bool) -> None:
    """Write one HTML page that shows the fleet.

    It has devices, delays, gaps, reboots, batteries and alerts.

    It is made from the tables, without Spark and without Java, also while the pipeline runs. The file needs no network
    and no other file: open it, mail it, keep it.

    \b
    Example:
      umqtt report --tables tables --out report.html --days 30
    """
    require_module("deltalake")
    from spark_ingest.report import write_report

    written = write_report(tables, out, days=days)
    if written.absent:
        say(f"not there, so empty in the report: {', '.join(f'gold/{name}' for name in written.absent)}")
    if as_json:
        click.echo(json.dumps({"out": str(out), **asdict(written)}))
        return
    totals = written.totals
    results().print(
        f"{out}: {totals['devices']:,} devices, {totals['readings']:,} readings, {totals['alerts']:,} open alerts, "
        f"{written.bytes / 1000:,.0f} kB",
        soft_wrap=True,
        markup=False,
    )
