"""umqtt spool: shows and checks what a collector has received, as it is on the disk."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_ingest.cli.spools import EXIT_DAMAGED, read, views_of
from spark_ingest.location import PathOption
from umqtt_cli.console import print_result, print_table
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.groups import CommandGroup
from umqtt_cli.properties import json_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_ingest.spool.blocks import Position
    from spark_ingest.spool.messages import Message
    from spark_ingest.spool.view import SpoolView
    from umqtt_cli.stop import Stop

_LOOK_EVERY_S = 0.2


@click.group(cls=CommandGroup)
def spool() -> None:
    """Show, check or retire what a collector has stored for Spark.

    It may be read while the collector runs.

    SPOOL is the folder given to the collector as --spool. For ls, cat and verify, it may also be one collector's
    folder.

    \b
    Example:
      umqtt spool ls spool
      umqtt spool cat spool --topic 'fleet/pump-7/#' --follow
      umqtt spool verify spool
      umqtt spool retire spool north --checkpoint checkpoint
    """


def _options(function: Any) -> Any:
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
    return click.argument("where", metavar="SPOOL")(as_json(function))


@spool.command("ls")
@_options
def show(where: str, as_json: bool) -> None:
    """List the spools: what each holds and how far it is durable.

    \b
    Example:
      umqtt spool ls spool --json
    """
    rows = [_summary(view) for view in views_of(where)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    numbers = ("segments", "bytes", "oldest", "durable to")
    print_table(("name", *numbers, "spool"), ((
        row["name"], f"{row['segments']}", f"{row['bytes']:,}", row["oldest"] or "",
        f"{row['segment']}:{row['position']}", row["spool"],
    ) for row in rows), numbers)  # fmt: skip


@spool.command()
@_options
@click.option("--topic", "topics", multiple=True, metavar="FILTER", help="Only these; may be given several times.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--new", is_flag=True, help="With --follow: begin with what comes from now on.")
def cat(
    where: str, as_json: bool, topics: tuple[str, ...], count: int | None,
    follow: bool, new: bool,
) -> None:  # fmt: skip
    """Print the messages of a spool, in the order in which they were received.

    Line ends and what does not print are shown as \\n and \\xNN. The properties of MQTT 5 follow their message, one on
    each indented line. JSON has everything about a message: its place in the spool, when it was received, its
    properties, and the payload as text, or as `hex` where it is no UTF-8.

    \b
    Example:
      umqtt spool cat spool --topic fleet/+/status
      umqtt spool cat spool --json --follow | jq .payload
    """
    from umqtt_cli.stop import Stop
    from umqtt_robust.errors import InvalidArgument
    from umqtt_robust.topics import check_topic_filter

    try:
        filters = [check_topic_filter(topic_filter) for topic_filter in topics]
    except InvalidArgument as error:
        raise KitError(f"--topic {' '.join(topics)}: {error} — + and # are whole levels", EXIT_USAGE) from error
    views = views_of(where)
    places = {view.name: read(view.durable) if new else None for view in views}
    with Stop() as stop:
        found = ((view, message) for view, message in _all(views, places, follow, stop) if _selected(message, filters))
        try:
            for view, message in islice(found, count):
                sys.stdout.write((_as_json(view, message) if as_json else _as_text(message)) + "\n")
                if follow:
                    sys.stdout.flush()
            sys.stdout.flush()
        except BrokenPipeError:
            # `umqtt spool cat … | head`: the reader has seen enough. Discard what is left in the buffer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@spool.command()
@_options
def verify(where: str, as_json: bool) -> int:
    """Check every byte that is durable: checksums, counts, missing segments. Exit code 5 when something is damaged.

    \b
    Example:
      umqtt spool verify spool || mail -s 'spool damaged' admin
    """
    from spark_ingest.errors import SpoolDamaged
    from spark_ingest.spool.messages import Damage, Verified
    from spark_ingest.spool.messages import verify as check

    damaged = False
    for view in views_of(where):
        try:
            found = read(lambda view=view: check(view), damage=False)
        except SpoolDamaged as error:
            found = Verified(0, 0, 0, 0, [Damage(0, None, str(error))])
        damaged = damaged or bool(found.damages)
        if as_json:
            click.echo(
                json.dumps({"name": view.name, **found._asdict(), "damages": [d._asdict() for d in found.damages]})
            )
            continue
        counted = f"{found.messages:,} messages in {found.blocks:,} blocks and {found.segments:,} segments"
        print_result(f"{view.where}: {'damaged' if found.damages else 'ok'}, {counted}, {found.bytes:,} bytes")
        for damage in found.damages:
            at = "" if damage.position is None else f" byte {damage.position}"
            print_result(f"  segment {damage.segment}{at} {damage.what}")
    return EXIT_DAMAGED if damaged else 0


@spool.command()
@click.argument("where", metavar="SPOOL", type=PathOption(file_okay=False))
@click.argument("name")
@click.option("--checkpoint", "checkpoints", multiple=True, required=True,
              type=PathOption(exists=True, file_okay=False),
              help="Checkpoint of the query that reads the spool; repeat it for several queries.")  # fmt: skip
def retire(where: Path, name: str, checkpoints: tuple[Path, ...]) -> None:
    """Remove the spool of a collector that will not come back, once Spark has read all of it.

    A query that reads the folder SPOOL goes on, whether it runs meanwhile or not. What is not read is never removed.

    \b
    Example:
      umqtt spool retire spool north --checkpoint checkpoint
    """
    from spark_ingest.pipeline.process import committed_offset
    from spark_ingest.source.offsets import SpoolTree, to_place, to_position
    from spark_ingest.spool.retire import retire as remove
    from spark_ingest.spool.view import Spools

    spools = Spools(where)
    read(spools.names)  # for the error, if SPOOL is one spool
    if name not in read(spools.folders):
        raise KitError(f"there is no spool {name} in {where} — try: umqtt spool ls {where}", EXIT_USAGE)
    view, tree = spools.view(name), SpoolTree(spools)
    durable: Position | None = read(view.durable)
    places: list[Position] = []
    for checkpoint in checkpoints:
        # Gone already: this repeats a removal that was interrupted.
        if durable is None:
            break
        place = read(lambda path=checkpoint: committed_offset(path)).get(name)
        start = {} if place is None else {name: place}
        end = to_place(durable)
        waiting = read(lambda start=start, end=end: tree.ranges(start, {name: end}))
        if waiting:
            size = sum(r.end - r.start for r in waiting)
            raise KitError(
                f"the query of {checkpoint} has not read {size:,} bytes of {view.where}: let it read to the end, "
                "and run this again",
                1,
            )
        places.append(durable if place is None else to_position(place))
    size = read(lambda: remove(view, places))
    print_result(f"{view.where}: {size:,} bytes removed")


def _summary(view: SpoolView) -> dict[str, Any]:
    durable = read(view.durable)
    if durable is None:
        return {"name": view.name, "spool": "", "segments": 0, "bytes": 0, "oldest": None, "segment": 0, "position": 0}
    segments = read(view.segments)
    size = sum(read(lambda s=s: view.segment_end(s, durable)) for s in segments)
    oldest = None
    for segment in segments:
        end = read(lambda s=segment: view.segment_end(s, durable))
        header = read(lambda s=segment, e=end: next(view.headers(s, 0, e), None)) if end else None
        if header is not None:
            oldest = _when(header.received_ms)
            break
    return {
        "name": view.name, "spool": durable.spool, "segments": len(segments), "bytes": size, "oldest": oldest,
        "segment": durable.segment, "position": durable.position,
    }  # fmt: skip


def _all(
    views: list[SpoolView], places: dict[str, Position | None], follow: bool, stop: Stop
) -> Iterator[tuple[SpoolView, Message]]:
    """Yield every message after `places`, spool by spool. follow: go on with messages that come later."""
    while not stop:
        for view in views:
            for message in _from(view, places):
                if stop:
                    return
                yield view, message
        if not follow:
            return
        time.sleep(_LOOK_EVERY_S)


def _from(view: SpoolView, places: dict[str, Position | None]) -> Iterator[Message]:
    """Yield the messages that have become durable since the last call."""
    from spark_ingest.spool.blocks import spool_of
    from spark_ingest.spool.messages import messages

    start, durable = places[view.name], read(view.durable)
    if durable is None or durable == start:
        return
    if start is not None and spool_of(read(view.runs), start.segment) != start.spool:
        # The spool was removed and made again, or restored from a copy: it is another one, read from its beginning.
        start = None
    found = messages(view, start, durable)
    while (message := read(lambda: next(found, None))) is not None:
        yield message
    places[view.name] = durable


def _selected(message: Message, filters: list[bytes]) -> bool:
    from umqtt_robust.topics import matches

    return not filters or any(matches(topic_filter, message.topic.encode()) for topic_filter in filters)


def _when(unix_ms: int) -> str:
    from spark_ingest.spool.blocks import LATEST_MS

    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(unix_ms, LATEST_MS))
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_text(message: Message) -> str:
    # A payload never begins a line, because its line ends are escaped: an indented line is always a property.
    lines = [f"{_when(message.received_ms)} {printable(message.topic)} {printable(message.payload)}"]
    properties = _properties(message)
    for name, value in properties.pop("headers", ()):
        lines.append(f"    header {printable(name)}: {printable(value)}")
    for name, value in properties.items():
        lines.append(f"    {name}: {printable(value if isinstance(value, bytes) else str(value))}")
    return "\n".join(lines)


def _as_json(view: SpoolView, message: Message) -> str:
    values: dict[str, object] = {"collector": view.name, **message._asdict(), "received": _when(message.received_ms)}
    try:
        values["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        values["payload"], values["hex"] = None, message.payload.hex()
    return json.dumps(values | {"properties": json_of(_properties(message))})


def _properties(message: Message) -> dict[str, Any]:
    """Return the properties that a message has, by their names."""
    return {name: value for name, value in message.properties._asdict().items() if value is not None}
