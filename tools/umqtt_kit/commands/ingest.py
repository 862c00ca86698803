"""umqtt ingest: the Spark pipeline in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from umqtt_kit.processes import become
from umqtt_kit.requirements import require_java, require_module, require_writable_folder

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--spool", required=True, type=_FOLDER, help="The spool folder of the collectors.")
@click.option("--tables", required=True, type=_FOLDER, help="Folder of the Delta tables: silver, quarantine.")
@click.option("--checkpoint", required=True, type=_FOLDER, help="Folder of Spark's progress; belongs to the tables.")
@click.option("--once", is_flag=True, help="Read what is there, then end.")
@click.option("--status", type=_FILE, help="File rewritten every second with counts.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object at the end.")
def ingest(spool: Path, tables: Path, checkpoint: Path, once: bool, status: Path | None, as_json: bool) -> int:
    """Turn the spool into Delta tables with Spark: one row a reading, whatever was sent twice.

    Prints `ready` once the query runs. Ctrl-C ends it in order.

    \b
    Example:
      umqtt ingest --spool spool --tables tables --checkpoint checkpoint
    """
    require_module("pyspark", "ingest")
    require_java()
    for option, folder in (("--spool", spool), ("--tables", tables), ("--checkpoint", checkpoint)):
        require_writable_folder(folder, option)
    arguments = ["--spool", str(spool), "--tables", str(tables), "--checkpoint", str(checkpoint)]
    arguments += ["--once"] * once + ["--json"] * as_json
    if status is not None:
        arguments += ["--status", str(status)]
    return become("spark_ingest.pipeline", *arguments)
