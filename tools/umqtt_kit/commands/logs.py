"""umqtt logs: shows what boards say, live."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from umqtt_cli.console import emit, emit_json, results, say
from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, EXIT_NO_DEVICE, KitError
from umqtt_cli.numbers import Finite
from umqtt_kit.mqtt import broker_options_if

if TYPE_CHECKING:
    from umqtt_kit.device import Port
    from umqtt_kit.logs.entries import Entry, Event
    from umqtt_kit.mqtt import Access

_NAMES = ("cyan", "magenta", "blue", "green", "bright_cyan", "bright_magenta")
_LEVELS = {"debug": "dim", "warning": "yellow", "error": "red"}


@click.command()
@click.option("-d", "--device", "devices", metavar="PORT|NAME", multiple=True, envvar="UMQTT_DEVICE",
              help="A board as for the other commands, or with --from-broker a device id; may be repeated. "
              "[default: all]")  # fmt: skip
@click.option("--from-broker", is_flag=True, help="What devices publish: their warnings, crashes and status.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many lines.")
@click.option("--timeout", type=Finite(min=0.1), metavar="SECONDS",
              help="End after this time; an error if --count was not reached.")  # fmt: skip
@broker_options_if(lambda options: options["from_broker"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def logs(
    devices: tuple[str, ...], from_broker: bool, count: int | None, timeout: float | None, access: Access | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what boards print, live, until Ctrl-C.

    Each line has its time and the board's name.

    No program is interrupted. A board that resets, or is unplugged and plugged in again, goes on where it is; without
    --device boards that are plugged in later are shown too. What does not print is shown as \\xNN.

    \b
    Example:
      umqtt logs
      umqtt logs --device ttyACM0 --device ttyUSB0
      umqtt logs --from-broker --broker mqtt://192.168.1.2
    """
    from umqtt_cli.stop import Stop
    from umqtt_kit.logs.entries import Entry

    shown = 0
    with Stop(timeout) as stop:

        def take(what: Entry | Event) -> None:
            nonlocal shown
            if stop:
                return
            is_line = isinstance(what, Entry)
            if as_json:
                written = emit_json(what.as_dict())
            elif is_line:
                written = show(what)
            else:
                written = True
                say(what.text)
            shown += is_line
            if not written or shown == count:
                stop.now()

        if access is not None:
            from umqtt_kit.logs import published

            if click.get_current_context().get_parameter_source("devices") is not ParameterSource.COMMANDLINE:
                devices = ()  # UMQTT_DEVICE and umqtt.toml name a port
            # Device ids become known only as their messages arrive; the names of ports are known beforehand.
            show = _printer(max(map(len, devices), default=0))
            published.follow(access, devices, take, say, lambda: bool(stop))
        else:
            from umqtt_kit.logs import serial

            ports = _ports(devices)
            show = _printer(max(len(port.name) for port in ports))
            for what in serial.follow(ports, lambda: bool(stop), join=not devices):
                take(what)
    if count is not None and shown < count and stop.timed_out:
        code = EXIT_NETWORK if from_broker else EXIT_DEVICE
        raise KitError(f"{shown} of {count} lines within {timeout:g} s — see --timeout, or: umqtt doctor", code)


def _ports(devices: tuple[str, ...]) -> list[Port]:
    from umqtt_kit.device import choose, find_ports
    from umqtt_kit.device.choose import PLUG_IN

    if devices:
        return list(dict.fromkeys(choose(device) for device in devices))
    # A USB port of an unknown kind may be a printer or a modem, so it is opened only when named.
    found = [port for port in find_ports() if port.boards]
    if not found:
        raise KitError(f"no board is connected — {PLUG_IN}", EXIT_NO_DEVICE)
    return found


def _printer(width: int) -> Callable[[Entry], bool]:
    """Return a function that shows a line to the user. width: of the longest device name known so far."""
    from rich.text import Text

    console = results()
    colours: dict[str, str] = {}

    def show(entry: Entry) -> bool:
        nonlocal width
        width = max(width, len(entry.device))
        time = f"{entry.time:%H:%M:%S}.{entry.time.microsecond // 1000:03}"
        texts = [f"{entry.level + ': ' if entry.level and entry.fields else ''}{entry.text}", *entry.more]
        for text in texts:
            if not console.is_terminal:
                if not emit(f"{time} {entry.device:{width}} {text}"):
                    return False
                continue
            name = colours.setdefault(entry.device, _NAMES[len(colours) % len(_NAMES)])
            style = _LEVELS.get(entry.level or "", "")
            console.print(Text.assemble((time, "dim"), " ", (f"{entry.device:{width}}", name), " ", (text, style)),
                          soft_wrap=True)  # fmt: skip
        return True

    return show
