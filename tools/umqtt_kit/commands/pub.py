"""umqtt pub: publishes messages to a broker."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.numbers import Finite
from umqtt_cli.properties import NAMES, parse
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.links import Links
    from umqtt_kit.mqtt import Access, QoS

_TICK_S = 0.1
_READ_SIZE = 64 * 1024


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with the payload.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a message.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("-r", "--retain", is_flag=True, help="Retain it for later subscribers; an empty payload deletes it.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Publish it N times.")
@click.option("-D", "--property", "given", metavar="NAME=VALUE", multiple=True,
              help=f"Of the message, with -V 5: {', '.join(NAMES)} (which is user-property=NAME=VALUE).")  # fmt: skip
@click.option("--timeout", type=Finite(min=0.1), default=30.0, show_default=True, metavar="SECONDS",
              help="How long to wait until everything is acknowledged.")  # fmt: skip
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pub(
    topic: str, payload: str | None, file: Path | None, lines: bool, qos: QoS, retain: bool, count: int,
    given: tuple[str, ...], timeout: float, access: Access, as_json: bool,
) -> None:  # fmt: skip
    """Publish PAYLOAD on TOPIC, and wait for the acknowledgement.

    PAYLOAD is text, or - for everything on stdin. At QoS 0 nothing is acknowledged: then it waits until everything is
    written. The password is taken from --password-file or UMQTT_PASSWORD, or asked for.

    \b
    Example:
      umqtt pub greenhouse/lamp on --broker mqtt://192.168.1.2
      sensors | umqtt pub greenhouse/readings --lines --qos 2
      umqtt pub greenhouse/ask state -V 5 -D response-topic=greenhouse/answer -D user-property=site=north
    """
    from umqtt_kit.links import Links

    if sum((payload is not None, file is not None, lines)) != 1:
        raise click.UsageError('give one of PAYLOAD ("" for an empty one, - for stdin), --file and --lines')
    if lines and count != 1:
        raise click.UsageError("--lines and --count exclude each other")
    if given and access.protocol != 5:
        raise click.UsageError("--property needs -V 5: a message of MQTT 3.1.1 has no properties")
    properties = parse(given) if given else None
    # Read before connecting: a broker closes connections that are silent for long.
    repeated = None if lines else [_payload(payload, file)] * count
    published = 0
    with Links(access, on_lost=lambda text: say(f"{text}; connecting again")) as link:
        for message in _stdin_lines(link) if repeated is None else repeated:
            link.publish(topic, message, qos, retain, properties)
            published += 1
        if not link.wait_for(lambda: not link.pending, timeout):
            unsure = max(link.unacknowledged, 1)
            raise KitError(
                f"{access.where}: {unsure} of {published} messages not acknowledged within {timeout:g} s — see its log",
                EXIT_NETWORK,
            )
        if link.dropped:
            problem = f"{link.dropped} of {published} messages will not be delivered: {link.why_dropped}"
            raise KitError(f"{access.where}: {problem} — correct it, or see the broker's permissions", EXIT_NETWORK)
        if link.downgraded:
            say(f"{access.where}: took {link.downgraded} messages at QoS 2 for QoS 1: it may deliver some twice")
    if as_json:
        click.echo(json.dumps({"topic": topic, "published": published, "qos": qos, "retain": retain}))


def _payload(payload: str | None, file: Path | None) -> bytes:
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    if payload == "-":
        return sys.stdin.buffer.read()
    # Arguments that are not UTF-8 come as surrogates.
    return (payload or "").encode(errors="surrogateescape")


def _stdin_lines(link: Links) -> Iterator[bytes]:
    """Yield the lines of stdin without line ends, as they arrive; meanwhile keep the link alive and read from it."""
    descriptor = sys.stdin.fileno()
    begun = b""
    while True:
        if not select.select([descriptor], [], [], _TICK_S)[0]:
            link.tick()
            continue
        data = os.read(descriptor, _READ_SIZE)
        *whole, begun = (begun + data).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
        if not data:
            if begun:
                yield begun
            return
