"""umqtt flash: puts a MicroPython image onto a board."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import notes, results, say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.device.choose import AUTO, choose, device_option

if TYPE_CHECKING:
    from umqtt_kit.device import Port
    from umqtt_kit.flash.images import Image
    from umqtt_kit.flash.uf2 import Drive


@click.command()
@click.argument("file", metavar="IMAGE", type=click.Path(dir_okay=False, path_type=Path))
@device_option
@click.option(
    "--board",
    "board_name",
    metavar="NAME",
    help="Folder under boards/, to check the image against.",
)
@click.option("--sha256", metavar="HEX", help="What the image's SHA-256 must be.")
@click.option(
    "--erase/--keep",
    default=None,
    help="ESP32: erase the whole flash first, as a board needs that had no MicroPython yet, or keep its files.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def flash(
    file: Path, device: str, board_name: str | None, sha256: str | None, erase: bool | None, yes: bool, as_json: bool
) -> int:
    """Write a MicroPython image onto a board.

    The ESP32 family takes it by esptool, the RP2 family as a UF2 file.

    The image comes from micropython.org/download. It is checked first: that it is whole, and for this chip. Its
    SHA-256 is shown, to be compared with the download page, before anything is written.

    An ESP32 that had no MicroPython yet must be erased: what it was sold with is no file system, and MicroPython stops
    there. --keep is for a newer image on a board of yours: settings and waiting readings stay.

    \b
    Example:
      umqtt flash ESP32_GENERIC-20251209-v1.27.0.bin --device ttyUSB0 --erase
      umqtt flash RPI_PICO_W-20251209-v1.27.0.uf2
    """
    from umqtt_kit.flash import esp, uf2
    from umqtt_kit.flash.images import UF2, read_image

    image = read_image(file)
    if sha256 is not None and sha256.lower() != image.sha256:
        raise KitError(f"the SHA-256 of {file} is {image.sha256}, not the one given — download it again", EXIT_USAGE)
    if board_name is not None:
        _check_board(board_name, image)
    began = time.monotonic()
    if image.kind == UF2:
        if erase is not None:
            raise KitError(
                "--erase and --keep are for the ESP32 family — for an RP2, copy flash_nuke.uf2 onto its drive first",
                EXIT_USAGE,
            )
        where = _uf2_place(device, image)
        if where is None:
            raise uf2.no_drive()
        _confirm(image, str(where.path), yes)
        drive = where if isinstance(where, uf2.Drive) else uf2.find_drive(image, where)
        uf2.write(image, drive)
        place = str(drive.path)
    else:
        port = _choose_real(device)
        _check_usb(port, image)
        if erase is None:
            erase = _ask_to_erase(port.path)
        _confirm(image, port.path, yes)
        esp.write(image, port.path, erase=erase, show=notes().is_terminal and not as_json)
        place = port.path
    seconds = round(time.monotonic() - began, 1)
    if as_json:
        values = {"image": str(file), "chip": image.chip, "sha256": image.sha256, "bytes": image.size, "at": place}
        click.echo(json.dumps({**values, "seconds": seconds}))
    else:
        results().print(f"{file.name} is on the {image.chip} at {place} ({seconds:g} s)", soft_wrap=True)
        say("Next: umqtt provision, then umqtt deploy")
    return 0


def _check_board(name: str, image: Image) -> None:
    from umqtt_kit.device.ports import board_description
    from umqtt_kit.flash.images import UF2, UF2_FAMILIES

    description = board_description(name)
    if image.kind == UF2:
        family = description.get("uf2_family")
        expected = UF2_FAMILIES.get(int(str(family), 0)) if family else None
    else:
        expected = description.get("chip")
    if expected is None:
        raise KitError(
            f"{name} takes no image of this kind — take the one that boards/{name}/README.md names", EXIT_USAGE
        )
    if expected != image.chip:
        raise KitError(f"the image is for {image.chip}, and {name} is an {expected} — take the other image", EXIT_USAGE)


def _check_usb(port: Port, image: Image) -> None:
    """Raise KitError if the port's USB id belongs to boards with another chip than the image's."""
    from umqtt_kit.device.ports import board_description

    chips = {board_description(name).get("chip") for name in port.boards}
    if chips and image.chip not in chips:
        raise KitError(
            f"the image is for {image.chip}, and {port.name} looks like {', '.join(port.boards)} — take another one",
            EXIT_USAGE,
        )


def _uf2_place(device: str, image: Image) -> Port | Drive | None:
    # Returns a board that is in its boot loader already, else the one that is to go there.
    from umqtt_kit.flash import uf2

    drives = [drive for drive in uf2.drives() if device == AUTO or Path(device) == drive.path]
    drive = uf2.matching_drive(image, drives)
    if drive is not None:
        return drive
    return _choose_real(device) if device != AUTO or _has_boards() else None


def _choose_real(device: str) -> Port:
    port = choose(device)
    if port.virtual:
        raise KitError(
            f"{port.name} is a virtual board; there is nothing to flash — go on with: umqtt deploy", EXIT_USAGE
        )
    return port


def _has_boards() -> bool:
    from umqtt_kit.device import find_ports

    return any(port.boards and not port.virtual for port in find_ports())


def _ask_to_erase(place: str) -> bool:
    # No default: either answer is wrong for half of the boards, and what is erased is gone.
    if not sys.stdin.isatty():
        raise KitError(
            "choose what happens to the files on it: --erase deletes them all (a board that never had MicroPython "
            "needs it), --keep leaves settings and waiting readings",
            EXIT_USAGE,
        )
    say("A board that had no MicroPython yet must be erased first. On one that has, settings and waiting readings go.")
    return click.confirm(f"Erase {place}?", default=None, err=True)


def _confirm(image: Image, place: str, yes: bool) -> None:
    say(f"{image.file.name}: {image.size:,} bytes for {image.chip}")
    say(f"SHA-256 {image.sha256}")
    if yes:
        return
    if not sys.stdin.isatty():
        raise KitError("there is no terminal to confirm on — compare the SHA-256, then repeat with --yes", EXIT_USAGE)
    if not click.confirm(f"Write it onto {place}?", err=True):
        raise click.Abort
