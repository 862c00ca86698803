"""Serial ports with a board behind them, told by their USB ids, and virtual boards, told by their registry."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from umqtt_kit.data import boards_folder
from umqtt_kit.errors import EXIT_NO_DEVICE, KitError


@dataclass(frozen=True)
class Port:
    """path: what is opened; name: what --device takes; boards: folders under boards/ with this USB id, which is often
    that of a USB bridge and then says little; virtual: a process of this machine, not a cable."""

    path: str
    name: str
    boards: tuple[str, ...] = ()
    virtual: bool = False
    usb_id: str | None = None
    serial_number: str | None = None
    description: str = ""

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "boards": list(self.boards)}


def find_ports() -> list[Port]:
    """Every USB serial port, and every virtual board that runs. Raises KitError."""
    from serial.tools import list_ports
    from umqtt_testkit import registry

    known = _boards_by_usb_id()
    found = []
    for port in sorted(list_ports.comports()):
        # A machine's own serial ports have no USB id; nothing is known of what is behind them.
        if port.vid is None:
            continue
        usb_id = f"{port.vid:04x}:{port.pid:04x}"
        name = Path(port.device).name
        boards = known.get(usb_id, ())
        found.append(Port(port.device, name, boards, False, usb_id, port.serial_number, port.description or ""))
    try:
        virtual = registry.entries()
    except registry.RegistryError as error:
        raise KitError(str(error), EXIT_NO_DEVICE) from error
    for entry in virtual:
        found.append(Port(entry.port, entry.name, (entry.board,), True, description=f"virtual board, {entry.image}"))
    return found


def board_description(name: str) -> dict[str, object]:
    """boards/NAME/board.json. Raises KitError when there is no such board."""
    file = boards_folder() / name / "board.json"
    if not file.is_file():
        names = ", ".join(sorted(folder.parent.name for folder in boards_folder().glob("*/board.json")))
        raise KitError(f"there is no board '{name}' — known are: {names}", 2)
    return json.loads(file.read_text())


@cache
def _boards_by_usb_id() -> dict[str, tuple[str, ...]]:
    # "VVVV:PPPP" in lower-case hex to the boards that show it.
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(boards_folder().glob("*/board.json")):
        for usb_id in json.loads(file.read_text()).get("usb_ids", []):
            found[usb_id.lower()] = (*found.get(usb_id.lower(), ()), file.parent.name)
    return found
