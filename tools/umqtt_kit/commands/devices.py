"""umqtt devices: lists which boards are connected, and what runs there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_table, say
from umqtt_cli.errors import EXIT_NO_DEVICE, KitError
from umqtt_kit.device.choose import interrupt_option

if TYPE_CHECKING:
    from umqtt_kit.device import Info, Port


_AT_ONCE = 16


@click.command()
@click.option("--passive", is_flag=True, help="Only list the ports; ask no board.")
@interrupt_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def devices(passive: bool, interrupt: bool, as_json: bool) -> int:
    """List the boards that are connected, and what runs there.

    The firmware is asked while it runs. A program that cannot be asked is left alone, unless --interrupt is given.
    Ports of an unknown kind are listed but not asked. Boards in their boot loader are listed where it can be seen (RP2:
    as a USB drive; an ESP32 there looks like a port that does not answer: umqtt flash reaches it all the same).

    \b
    Example:
      umqtt devices --passive
    """
    from umqtt_kit.device import find_ports
    from umqtt_kit.flash.uf2 import drives

    # The boards are asked in parallel, because a silent one takes seconds.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda port: _describe(port, passive, interrupt), find_ports()))
    loaders = [drive.as_dict() for drive in drives()]
    if as_json:
        click.echo(json.dumps({"boards": found, "boot_loaders": loaders}))
    else:
        _show(found, loaders)
    return 0 if found or loaders else EXIT_NO_DEVICE


def _describe(port: Port, passive: bool, interrupt: bool) -> dict[str, object]:
    """Return the row of a port. info: None if it was not asked or did not answer; problem: why it did not."""
    row: dict[str, object] = {**port.as_dict(), "board": None, "info": None, "problem": None}
    if port.boards and not passive:
        try:
            info = _ask(port, interrupt)
        except KitError as error:
            row["problem"] = str(error)
        else:
            from umqtt_kit.device.guess import candidates

            names = candidates(info, port)
            row |= {"info": info.as_dict(), "board": names[0] if len(names) == 1 else None}
    if row["board"] is None and len(port.boards) == 1:
        row["board"] = port.boards[0]
    return row


def _ask(port: Port, interrupt: bool) -> Info:
    from umqtt_kit.device import Board, Manner, look

    with look(port, interrupt=True) if interrupt else Board(port, manner=Manner.BESIDE) as board:
        return board.info()


def _show(found: list[dict[str, object]], loaders: list[dict[str, object]]) -> None:
    from umqtt_kit.device.choose import PLUG_IN

    if not found and not loaders:
        say(f"No board is connected: {PLUG_IN}")
        return
    rows = []
    for row in found:
        info = row["info"]
        cells = [str(row["name"]), str(row["path"]), str(row["board"] or " or ".join(_names(row)) or "unknown")]
        if isinstance(info, dict):
            cells += [info["version"], info["app_version"] or "none", info["device_id"] or ""]
        else:
            cells += ["not asked" if row["problem"] is None else "no answer", "", ""]
        rows.append(cells)
    for loader in loaders:
        rows.append([*(str(loader[name]) for name in ("chip", "path", "model")), "boot loader", "", ""])
    print_table(("device", "port", "board", "MicroPython", "application", "device id"), rows)
    for row in found:
        if row["problem"]:
            say(str(row["problem"]))


def _names(row: dict[str, object]) -> list[str]:
    boards = row["boards"]
    return [str(name) for name in boards] if isinstance(boards, list) else []
