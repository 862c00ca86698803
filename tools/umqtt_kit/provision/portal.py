"""Gives a board a code for its setup portal, so that a phone can set it up; see firmware/portal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.deploy.plan import read_record
from umqtt_kit.device import Board, Manner, Port
from umqtt_kit.device.guess import check_board, check_network, guess_board
from umqtt_kit.device.ports import board_description
from umqtt_kit.firmware_settings import firmware_module

PORTAL = "/portal.json"


@dataclass(frozen=True)
class PortalCode:
    """What goes onto the label of a board. network: SSID of its access point; code: also that network's password."""

    port: str
    network: str
    code: str


def give_code(port: Port, board_name: str | None) -> PortalCode:
    """Write a new code onto a board; the previous code becomes invalid.

    board_name: folder under boards/, or None to find out. Raises KitError: exit code 5 if the image has no Wi-Fi.
    """
    code = firmware_module("code", "portal").new_code()
    with Board(port, manner=Manner.STOP) as board:
        info = board.info()
        check_network(info, port, {"wifi": ["any"]})
        if info.unique_id is None:
            raise KitError(f"{port.name}: this image has no unique id to name its network by", EXIT_DEVICE)
        name = board_name or read_record(board).board or guess_board(info, port)
        check_board(name, info)
        board.put(PORTAL, json.dumps({"code": code, "button": _button(board_description(name))}).encode())
    return PortalCode(port.name, f"umqtt-{info.unique_id[-6:]}", code)


def _button(description: dict[str, Any]) -> int | str | None:
    """Return the boot button in a board.json: the number of a pin, "bootsel" on a Pico without one, or None."""
    return description["pins"].get("boot_button", "bootsel" if description["sys_platform"] == "rp2" else None)
