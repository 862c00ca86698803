"""Finds the folder under boards/ that describes a board, by MicroPython's own text about it, then by the USB id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from umqtt_broker.cli.lan import is_loopback, own_address

from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.data import board_folders
from umqtt_kit.device.board import Info
from umqtt_kit.device.ports import Port, board_description


def guess_board(info: Info, port: Port) -> str:
    """Return the one folder under boards/ that fits a board. Raises KitError (exit code 2) if several fit, or none."""
    found = candidates(info, port)
    if len(found) == 1:
        return found[0]
    what = f"'{info.machine}'"
    if found:
        raise KitError(f"{what} may be {', '.join(found)} — say which: --board {found[0]}", EXIT_USAGE)
    names = ", ".join(sorted(board_folders()))
    raise KitError(f"{what} is no board described here — say which is nearest: --board NAME, of {names}", EXIT_USAGE)


def check_network(info: Info, port: Port, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise KitError (exit code 5) if missing_network() finds something. For callers that have sent nothing yet."""
    missing = missing_network(info, port, settings)
    if missing is not None:
        problem, remedy = missing
        raise KitError(f"{port.name}: {problem}: nothing was sent — {remedy}", EXIT_DEVICE)


def missing_network(
    info: Info, port: Port, settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, str] | None:
    """Return why the board cannot reach a broker, and what to do; None if it can.

    It cannot if its image has no sockets, or lacks Wi-Fi for the networks to join, or if a broker is the board itself.
    """
    if info.network == "none":
        missing, otherwise = "no network", ""
    elif settings.get("wifi") and info.network != "wifi":
        missing, otherwise = "no Wi-Fi", "; with a cable, leave the setting wifi empty"
    else:
        return itself(port, settings.get("brokers") or ())
    boards = [name for name in candidates(info, port) if board_description(name).get("machine") != info.machine]
    image = " or ".join(boards) or "a board with Wi-Fi"
    return f"this image ({info.machine}) has {missing}", f"load that of {image}: umqtt flash IMAGE{otherwise}"


def itself(port: Port, brokers: Iterable[str]) -> tuple[str, str] | None:
    """Return what is wrong with the first address that is the board itself, and what to do; None if there is none.

    A virtual board shares this computer's addresses.
    """
    for broker in () if port.virtual else brokers:
        found = urlsplit(broker)
        if is_loopback(found.hostname or ""):
            here = own_address() or "ADDRESS"
            address = found._replace(netloc=f"{here}:{found.port}" if found.port else here).geturl()
            remedy = f"give {address} if it is this computer, where umqtt broker --lan makes one"
            return f"the broker {broker} is the board itself", remedy
    return None


def check_board(name: str, info: Info) -> None:
    """Raise KitError (exit code 5) if the board has a known chip that is not the one of board `name`."""
    chips = {board: _plain(str(board_description(board).get("mcu"))) for board in board_folders()}
    chip = "host" if info.platform in ("linux", "darwin") else _plain(info.machine.rpartition(" with ")[2])
    likely = [board for board, of_board in chips.items() if of_board == chip]
    if likely and name not in likely:
        mcu = board_description(name).get("mcu")
        raise KitError(
            f"{name} has the chip {mcu}, and this board another one ({info.machine}) — deploy for it: --board "
            f"{' or '.join(likely)}",
            EXIT_DEVICE,
        )


def candidates(info: Info, port: Port) -> list[str]:
    """Return the folders under boards/ that fit a board's machine text ("Raspberry Pi Pico W with RP2040").

    If none matches, the MCU at the end of that text decides: an image for a board that is not described here may run
    on the MCU of one that is. If several are left, and the port's USB id fits exactly one of them, only that one is
    returned.
    """
    described = {name: board_description(name) for name in board_folders()}
    found = [name for name, board in described.items() if board.get("machine") == info.machine]
    if not found and info.platform in ("linux", "darwin"):
        return ["UNIX"]
    if not found:
        mcu = _plain(info.machine.rpartition(" with ")[2])
        found = [name for name, board in described.items() if _plain(str(board.get("mcu"))) == mcu]
    by_port = [name for name in found if name in port.boards]
    return by_port if len(by_port) == 1 else found


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
