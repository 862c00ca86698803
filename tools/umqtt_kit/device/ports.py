"""Finds serial ports with a board behind them, by their USB ids, and virtual boards, by their registry."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from umqtt_cli.errors import EXIT_NO_DEVICE, EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit.data import board_folders


@dataclass(frozen=True)
class Port:
    """A port with a board behind it.

    path: what is opened; name: what --device takes; boards: folders under boards/ with this USB id, which is often that
    of a USB bridge and then says little; virtual: a process of this machine, not a cable.
    """

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
    """Return every USB serial port, and every virtual board that runs. Raises KitError."""
    from serial.tools import list_ports
    from umqtt_testkit import registry

    known = _boards_by_usb_id()
    found = []
    for port in sorted(list_ports.comports()):
        # A machine's own serial ports have no USB id, so nothing is known of what is behind them.
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
    """Return board.json of a board.

    Raises KitError (exit code 2) if there is no such board, or its file is invalid.
    """
    folders = board_folders()
    if name not in folders:
        raise KitError(f"there is no board '{name}' — known are: {', '.join(sorted(folders))}", EXIT_USAGE)
    file = folders[name] / "board.json"
    try:
        values = loads(file.read_bytes())
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    except ValueError as error:
        raise KitError(f"{file} is not JSON ({error}) — correct it", EXIT_USAGE) from error
    if not isinstance(values, dict):
        raise KitError(f"{file} is not a JSON object — correct it", EXIT_USAGE)
    return values


def _boards_by_usb_id() -> dict[str, tuple[str, ...]]:
    # Maps "VVVV:PPPP" in lower-case hex to the boards that show it.
    found: dict[str, tuple[str, ...]] = {}
    for name in board_folders():
        usb_ids = board_description(name).get("usb_ids")
        for usb_id in usb_ids if isinstance(usb_ids, list) else []:
            key = str(usb_id).lower()  # a value that is no text matches no port
            found[key] = (*found.get(key, ()), name)
    return found
