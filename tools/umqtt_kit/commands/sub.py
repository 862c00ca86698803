"""umqtt sub: prints messages from a broker."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import emit, emit_json, say
from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.numbers import Finite
from umqtt_cli.properties import json_of
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access, QoS

_FIELDS = ("time", "topic", "qos", "retain", "payload")
_LARGEST = 1024 * 1024


@click.command()
@click.argument("filters", metavar="FILTER...", nargs=-1, required=True)
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "hex", "json"]), default="text", show_default=True,
              help="How payloads are printed; json: a line with everything about the message.")  # fmt: skip
@click.option("--fields", default="topic,payload", show_default=True, metavar="LIST", help=f"Of {','.join(_FIELDS)}.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option("--timeout", type=Finite(min=0.1), metavar="SECONDS",
              help="End after this time; it is an error (exit code 4) when --count was not reached.")  # fmt: skip
@click.option("--session", metavar="NAME", help="A session that the broker keeps: what comes meanwhile is not missed.")
@broker_options
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def sub(
    filters: tuple[str, ...], qos: QoS, form: str, fields: str, count: int | None, timeout: float | None,
    session: str | None, access: Access, as_json: bool,
) -> None:  # fmt: skip
    """Print what is published on topics that match FILTER.

    One line a message, until Ctrl-C.

    A message is printed before it is acknowledged. Line ends and what does not print are shown as \\n and \\xNN, into
    a pipe too, where mosquitto_sub writes raw bytes: programs take --json or --format hex, which lose nothing. A link
    that breaks is made again. Messages of more than 1 MB are left out, and that is said.

    \b
    Example:
      umqtt sub 'fleet/+/telemetry' --broker mqtt://192.168.1.2
      umqtt sub '#' --fields time,topic,retain,payload
      umqtt sub 'fleet/#' --json --count 10 --timeout 60
    """
    from umqtt_cli.stop import Stop
    from umqtt_kit.links import Links

    if session is not None and qos == 2:
        # Between PUBREC and PUBREL only this process would have the message.
        raise click.UsageError("a --session takes QoS 0 or 1: at QoS 2 messages are lost when this program ends")
    chosen = _chosen(fields)
    form = "json" if as_json else form
    printed = 0
    with Stop() as stop:

        def take(topic: str, payload: bytes, qos: int, retain: bool, properties: dict[str, Any]) -> bool:
            nonlocal printed
            # What is no longer printed is not acknowledged either: a kept session delivers it next time.
            if stop:
                return False
            message = topic, payload, qos, retain
            if form == "json":
                values = _values(*message)
                if access.protocol == 5:
                    values["properties"] = json_of(properties)
                written = emit_json(values)
            else:
                written = emit(_text(chosen, form, *message))
            if not written:
                stop.now()
                return False
            printed += 1
            if printed == count:
                stop.now()
            return True

        link = Links(
            access,
            on_message=take,
            on_lost=lambda text: say(f"{text}; connecting again"),
            on_back=lambda where: say(f"{where}: connected again"),
            session=session,
            rx_size=_LARGEST,
        )
        with link:
            link.subscribe(*filters, qos=qos)
            link.wait_for(lambda: bool(stop), timeout)
    if count is not None and printed < count and not stop:
        raise KitError(f"{printed} of {count} messages within {timeout:g} s — see --timeout", EXIT_NETWORK)


def _chosen(fields: str) -> tuple[str, ...]:
    chosen = tuple(fields.split(","))
    for name in chosen:
        if name not in _FIELDS:
            raise KitError(f"--fields: there is no field {name!r} — choose of {','.join(_FIELDS)}", EXIT_USAGE)
    return chosen


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def _values(topic: str, payload: bytes, qos: int, retain: bool) -> dict[str, object]:
    """Return the values of a message. payload: text, or null if it is not UTF-8; then `hex` holds it."""
    values: dict[str, object] = {"time": _now(), "topic": topic, "qos": qos, "retain": retain, "payload": None}
    try:
        values["payload"] = payload.decode()
    except UnicodeDecodeError:
        values["hex"] = payload.hex()
    return values


def _text(chosen: tuple[str, ...], form: str, topic: str, payload: bytes, qos: int, retain: bool) -> str:
    values = {
        "time": _now(),
        "topic": printable(topic),
        "qos": f"q{qos}",
        "retain": "retained" if retain else "-",
        "payload": payload.hex() if form == "hex" else printable(payload),
    }
    return " ".join(values[name] for name in chosen)
