"""umqtt decoders: writes a first ingest.toml from what a spool holds."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from spark_ingest.cli.spools import read, views_of
from umqtt_cli.groups import CommandGroup

if TYPE_CHECKING:
    from spark_ingest.spool.view import SpoolView


@click.group(cls=CommandGroup)
def decoders() -> None:
    """Find the rules for payloads of other makers' devices.

    \b
    Example:
      umqtt decoders suggest --spool spool > ingest.toml
      umqtt decode --config ingest.toml --spool spool
    """


@decoders.command()
@click.option("--spool", required=True, metavar="SPOOL", help="The collectors' spools, or one of them.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=100_000, show_default=True,
              help="Look at so many messages of each collector.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the text.")
def suggest(spool: str, count: int, as_json: bool) -> None:
    """Print an ingest.toml: ready-made rules for the systems that are known, and comments for the rest.

    \b
    Example:
      umqtt decoders suggest --spool spool > ingest.toml
    """
    from spark_ingest.decoders.suggest import suggest as written
    from spark_ingest.spool.messages import messages

    def first(view: SpoolView) -> list[tuple[str, bytes]]:
        return [(one.topic, one.payload) for one in islice(messages(view), count)]

    text = written(chain.from_iterable(read(lambda v=view: first(v)) for view in views_of(spool)))
    click.echo(json.dumps({"toml": text}) if as_json else text, nl=as_json)
