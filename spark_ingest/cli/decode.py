"""umqtt decode: shows what a rule of ingest.toml makes of a message."""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_ingest.cli.spools import read, views_of
from spark_ingest.location import PathOption
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_ingest.pipeline.run.explain import Explained


@click.command()
@click.argument("topic", required=False)
@click.argument("payload", required=False)
@click.option("--config", type=PathOption(dir_okay=False), help="The ingest.toml.  [default: our own records alone]")
@click.option("--trust-ids", is_flag=True, help="As that of umqtt ingest.")
@click.option("--spool", metavar="SPOOL", help="The messages of a collector's spool, instead of TOPIC and PAYLOAD.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="With --spool: only so many messages.")
@click.option("--refused", is_flag=True, help="With --spool: only what cannot be read, or not whole.")
@click.option("--hex", "as_hex", is_flag=True, help="PAYLOAD is in hex.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def decode(
    topic: str | None, payload: str | None, config: Path | None, trust_ids: bool, spool: str | None, count: int | None,
    refused: bool, as_hex: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show what the rules of ingest.toml make of a message.

    That is its readings with their time, a status, or why it cannot be read, and which rule reads it. PAYLOAD is a
    text, a file, or - for stdin. Nothing is written, and Spark is not needed.

    \b
    Example:
      umqtt decode --config ingest.toml zigbee2mqtt/kitchen '{"temperature":21.5}'
      umqtt decode --config ingest.toml spBv1.0/plant/NBIRTH/edge birth.bin
      umqtt decode --config ingest.toml --spool spool --refused
    """
    from spark_ingest.decoders.rules import Rules, load
    from spark_ingest.pipeline.run.explain import Explainer

    if (spool is None) != (topic is not None and payload is not None):
        raise click.UsageError("give TOPIC and PAYLOAD, or --spool")
    rules = Rules(trust_ids, read(lambda: load(config)) if config else "")
    explainer = Explainer(rules)
    if spool is None:
        found = iter([(str(topic), _payload(str(payload), as_hex), round(time.time() * 1000), False)])
    else:
        found = islice(_messages(spool), count)
    for name, content, received_ms, retain in found:
        explained = explainer.explain(name, content, received_ms, retain=retain)
        if not refused or explained.reasons:
            click.echo(json.dumps(_as_json(explained)) if as_json else _as_text(explained))


def _messages(spool: str) -> Iterator[tuple[str, bytes, int, bool]]:
    from spark_ingest.spool.messages import messages

    for view in views_of(spool):
        found = messages(view)
        while (message := read(lambda found=found: next(found, None))) is not None:
            yield message.topic, message.payload, message.received_ms, message.retain


def _payload(text: str, as_hex: bool) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if as_hex:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise KitError(f"PAYLOAD is not hex: {error}", EXIT_USAGE) from error
    # A JSON object may be longer than any name of a file.
    if len(text) < 256 and "\0" not in text and Path(text).is_file():
        try:
            return Path(text).read_bytes()
        except OSError as error:
            raise KitError(f"{text}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    return text.encode(errors="surrogateescape")


def _as_json(explained: Explained) -> dict[str, Any]:
    return explained._asdict() | {"ignored": explained.is_ignored}


def _as_text(explained: Explained) -> str:
    lines = [printable(explained.topic), f"  rule      {explained.rule or 'none: read as our own firmware'}"]
    for reading in explained.readings:
        numbered = f", {reading['boot']} {reading['seq']}" if reading["seq"] is not None else ""
        when = f"{reading['event_ts']} ({reading['event_ts_from']})"
        lines.append(f"  reading   {reading['device_id']}{numbered}, {when}")
        lines += [f"    {name} = {value}" for name, value in reading["metrics"].items()]
        lines += [f"    {name} = {json.dumps(text)}" for name, text in reading["texts"].items()]
    if explained.status:
        state = "online" if explained.status["online"] else "offline"
        reason = f" ({explained.status['reason']})" if explained.status["reason"] else ""
        lines.append(f"  status    {explained.status['device_id']} is {state}{reason}")
    lines += ["  log"] if explained.log else []
    lines += [f"  refused   {reason}" for reason in explained.reasons]
    lines += ["  no value in it, or left out by the rule"] if explained.is_ignored else []
    return "\n".join(map(printable, lines))
