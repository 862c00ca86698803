"""umqtt collect: the collector in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from umqtt_kit.processes import become
from umqtt_kit.requirements import require_module, require_writable_folder

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--broker", required=True, metavar="URL", help="Any MQTT 3.1.1 broker: mqtt://HOST[:PORT].")
@click.option(
    "--spool",
    required=True,
    type=_FOLDER,
    help="Folder that what was received is kept in until Spark has read it.",
)
@click.option(
    "--name",
    default="collector",
    show_default=True,
    help="Name of this collector: its client id at the broker and its folder in the spool.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="FILTER",
    help="Topic filter to subscribe to; may be given several times.  [default: fleet/+/telemetry]",
)
@click.option("--status", type=_FILE, help="File rewritten every second with counts.")
def collect(broker: str, spool: Path, name: str, topics: tuple[str, ...], status: Path | None) -> int:
    """Receive telemetry and keep it on the disk until Spark has it, acknowledging only what is safe there.

    Prints `subscribed NAME` once the broker has confirmed the subscription. Ctrl-C ends it in order.

    \b
    Example:
      umqtt collect --broker mqtt://127.0.0.1:1883 --spool spool
    """
    require_module("spark_ingest", "ingest")
    require_writable_folder(spool, "--spool")
    arguments = ["--broker", broker, "--spool", str(spool), "--name", name]
    for topic in topics:
        arguments += ["--topic", topic]
    if status is not None:
        arguments += ["--status", str(status)]
    return become("spark_ingest.collector", *arguments)
