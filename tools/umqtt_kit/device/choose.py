"""Which board a command means: the option --device of every command that needs one.

-d /dev/ttyACM0   a port, or a link to one        -d ttyACM0     its short name
-d e6614c311b7b   the USB serial number           -d bench-1     the name of a virtual board
-d auto, or none  the only board there is; with two, the command lists them and fails (exit code 2)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from umqtt_cli.errors import EXIT_NO_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.device.ports import Port, find_ports

AUTO = "auto"
#: What to do if there is no board.
PLUG_IN = "plug one in, or start a virtual one: umqtt board bench.img"


def device_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the click option -d/--device; the command gets `device`, which it passes to choose()."""
    return click.option(
        "-d",
        "--device",
        metavar="PORT|NAME",
        default=AUTO,
        envvar="UMQTT_DEVICE",
        help="Serial port, its name, a USB serial number, or a virtual board's name. [default: the only one]",
    )(function)


def interrupt_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the click flag --interrupt; the command gets `interrupt`, which it passes to look()."""
    return click.option(
        "--interrupt",
        is_flag=True,
        help="Interrupt a program that does not answer, and start it again at the end.",
    )(function)


def choose(device: str | None) -> Port:
    """Return the port that `device` means. Raises KitError: exit code 3 if there is none, 2 if several fit."""
    ports = find_ports()
    if device is None or device == AUTO:
        return _only(ports)
    for port in ports:
        if device in (port.path, port.name, port.serial_number):
            return port
    path = Path(device)
    if path.exists():
        real = os.path.realpath(path)
        for port in ports:
            if real == os.path.realpath(port.path):
                return port
        return Port(real, path.name, virtual=real.startswith("/dev/pts/"))
    raise KitError(f"there is no board '{device}' — {_there_are(ports)}", EXIT_NO_DEVICE)


def _only(ports: list[Port]) -> Port:
    # A USB port of an unknown kind may be a printer or a modem, so it is used only when named.
    boards = [port for port in ports if port.boards]
    if len(boards) == 1:
        return boards[0]
    if boards:
        names = ", ".join(port.name for port in boards)
        raise KitError(f"there are {len(boards)} boards: {names} — say which: --device {boards[0].name}", EXIT_USAGE)
    if ports:
        raise KitError(f"no known board is connected — {_there_are(ports)}", EXIT_NO_DEVICE)
    raise KitError(f"no board is connected — {PLUG_IN}", EXIT_NO_DEVICE)


def _there_are(ports: list[Port]) -> str:
    if not ports:
        return f"none is connected; {PLUG_IN}"
    return f"there are: {', '.join(port.name for port in ports)} (try: umqtt devices)"
