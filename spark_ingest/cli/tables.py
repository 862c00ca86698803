"""umqtt tables: maintains the tables that umqtt ingest writes, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from spark_ingest.location import Location, PathOption, TablesOption, reason
from umqtt_cli.console import print_result, say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.groups import CommandGroup
from umqtt_cli.numbers import Finite
from umqtt_cli.requirements import require_module

_config = click.option(
    "--config",
    type=PathOption(dir_okay=False),
    metavar="FILE",
    help="The ingest.toml that umqtt ingest was started with.",
)


@click.group(cls=CommandGroup)
def tables() -> None:
    """Show, compact, clean or rebuild the tables.

    `ls`, `compact` and `vacuum` may run beside `umqtt ingest`; the others need it stopped.

    \b
    Example:
      umqtt tables ls --tables tables
      umqtt tables compact --tables tables
      umqtt tables vacuum --tables tables
    """


def _options(command: Callable[..., Mapping[str, Mapping[str, int]]]) -> Callable[..., None]:
    """Add --tables and --json to a command, and print what `command` returns."""

    @click.option("--tables", "folder", required=True, type=TablesOption(exists=True), help="Their folder or URL.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @wraps(command)
    def run(*, as_json: bool, **given: Any) -> None:
        require_module("deltalake")
        from deltalake.exceptions import DeltaError
        from pyarrow import ArrowException

        try:
            found = command(**given)
        except (OSError, DeltaError, ArrowException) as error:
            raise KitError(f"{given['folder']}: {reason(error)} — mend that and run it again", 1) from error
        if as_json:
            click.echo(json.dumps(found))
            return
        for name, figures in found.items():
            print_result(f"{name:14}" + "".join(f"{count:>14,} {what}" for what, count in figures.items()))

    return run


@tables.command()
@_options
def ls(folder: Location) -> Mapping[str, Mapping[str, int]]:
    """Rows, files and bytes of every table, and the bytes of files that only older versions of it use.

    \b
    Example:
      umqtt tables ls --tables tables --json
    """
    from spark_ingest.tables.upkeep import listed

    return {
        one.name: {"rows": one.rows, "files": one.files, "bytes": one.size, "dead bytes": one.dead}
        for one in listed(folder)
    }


@tables.command()
@_options
def compact(folder: Location) -> Mapping[str, Mapping[str, int]]:
    """Join small files, which makes reading quicker. Changes no row; may run beside `umqtt ingest`.

    \b
    Example:
      umqtt tables compact --tables tables
    """
    from spark_ingest.tables.upkeep import compact as join_files

    done = join_files(folder)
    return {one.name: {"files before": one.files_before, "after": one.files_after} for one in done}


@tables.command()
@click.option("--keep-hours", type=Finite(1, 876_000), default=24.0, show_default=True,
              help="Readers of a version as old as this still find its files.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count only.")
@_options
def vacuum(folder: Location, keep_hours: float, dry_run: bool) -> Mapping[str, Mapping[str, int]]:
    """Remove files that no recent version uses, which compaction and removals leave behind.

    \b
    Example:
      umqtt tables vacuum --tables tables --keep-hours 24
    """
    from spark_ingest.tables.upkeep import vacuum as remove_files

    return {name: {"files": count} for name, count in remove_files(folder, keep_hours, dry_run=dry_run).items()}


@tables.command()
@click.option("--days", type=click.IntRange(1, 36_500), required=True,
              help="Keep what was received in this many days.")  # fmt: skip
@_options
def retain(folder: Location, days: int) -> Mapping[str, Mapping[str, int]]:
    """Remove old rows. What gold has counted stays, except windows and traffic of those days.

    The space is free after the next `umqtt tables vacuum` that is late enough.

    \b
    Example:
      umqtt tables retain --days 90 --tables tables
    """
    from spark_ingest.pipeline.process import require_whole
    from spark_ingest.pipeline.run.claim import tables_at_rest
    from spark_ingest.tables.upkeep import retain as remove_old

    with tables_at_rest(folder, "umqtt tables retain"):
        require_whole(folder)
        return {name: {"rows removed": count} for name, count in remove_old(folder, days).items()}


@tables.command()
@click.argument("device", metavar="DEVICE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_config
@_options
def forget(device: str, yes: bool, folder: Location, config: Path | None) -> Mapping[str, Mapping[str, int]]:
    """Remove every row of DEVICE, whatever topic it came on, and count gold anew.

    Older versions of the tables keep the rows on the disk until a vacuum removes them. Run the second line of the
    example an hour later, when no version that has the rows is younger than --keep-hours.

    Messages of it that the spool still holds are not touched, nor what it publishes from now on. On a terminal it asks
    first. A name of which the tables have no row is exit code 2.

    \b
    Example:
      umqtt tables forget pump-7 --tables tables
      umqtt tables vacuum --keep-hours 1 --tables tables
    """
    from spark_ingest.pipeline.change.delete_device import delete_device
    from spark_ingest.pipeline.process import UNFINISHED
    from spark_ingest.pipeline.run.claim import tables_at_rest

    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove every row of {printable(device)} from {folder}?", abort=True, err=True)
    with tables_at_rest(folder, "umqtt tables forget"):
        goes_on = (folder / UNFINISHED).exists()  # the rows were removed before the earlier run was interrupted
        removed = delete_device(folder, device, config)
    if not (goes_on or any(removed.values())):
        raise KitError(f"{folder} has no row of a device {device!r} — see the names in gold/devices", EXIT_USAGE)
    return {name: {"rows removed": count} for name, count in removed.items()}


@tables.command()
@click.option("--gold-only", is_flag=True, help="Count gold anew from silver, and leave silver as it is.")
@_config
@_options
def rebuild(folder: Location, gold_only: bool, config: Path | None) -> Mapping[str, Mapping[str, int]]:
    """Make silver, the tables beside it and gold anew from bronze; a pipeline goes on afterwards where it was.

    What retention has removed from bronze is gone then.

    \b
    Example:
      umqtt tables rebuild --tables tables
    """
    from spark_ingest.pipeline.change.rebuild import rebuild as make_anew
    from spark_ingest.pipeline.change.rebuild import recount
    from spark_ingest.pipeline.run.claim import tables_at_rest

    with tables_at_rest(folder, "umqtt tables rebuild"):
        if gold_only:
            return {"gold": {"devices": recount(folder)}}
        return {"silver": {"rows": make_anew(folder, config=config, report=say)}}
