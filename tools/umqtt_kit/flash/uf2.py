"""RP2 family: the boot loader is a USB drive, and an image that is copied onto it is written into the flash."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from dataclasses import dataclass
from pathlib import Path

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NO_DEVICE, KitError
from umqtt_kit.device import Board, Manner, Port
from umqtt_kit.flash.images import Image

#: Variable that names further folders to look into, separated by colons, for a drive mounted by hand.
DRIVES = "UMQTT_UF2_DRIVES"
_INFO = "INFO_UF2.TXT"
_CHIPS = {"RPI-RP2": "rp2040", "RP2350": "rp2350"}
_APPEARS_WITHIN_S = 30.0
_RESETS_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.1
_CHUNK = 64 * 1024
_BY_HAND = "hold the button BOOTSEL while you plug in the cable"


@dataclass(frozen=True)
class Drive:
    """A boot loader that shows itself as a drive. chip: rp2040, rp2350, or the boot loader's own word for it."""

    path: Path
    chip: str
    model: str

    def as_dict(self) -> dict[str, object]:
        return {"path": str(self.path), "chip": self.chip, "model": self.model}


def drives() -> list[Drive]:
    """Return the boot loaders whose drive is mounted."""
    found = []
    for folder in _mount_points():
        with contextlib.suppress(OSError):
            lines = (folder / _INFO).read_text(errors="replace").splitlines()
            values = dict(line.split(":", 1) for line in lines if ":" in line)
            board_id = values.get("Board-ID", "").strip()
            found.append(Drive(folder, _CHIPS.get(board_id, board_id), values.get("Model", "").strip()))
    return found


def find_drive(image: Image, port: Port) -> Drive:
    """Return the boot loader for this image. Raises KitError.

    A board that runs MicroPython at `port` is sent into its boot loader first.
    """
    drive = matching_drive(image, drives())
    if drive is not None:
        return drive
    with Board(port, manner=Manner.STOP, restart=False) as board, contextlib.suppress(KitError):
        # The board is gone before it can answer.
        board.exec("import machine\nmachine.bootloader()", 2.0)
    deadline = time.monotonic() + _APPEARS_WITHIN_S
    while time.monotonic() < deadline:
        drive = matching_drive(image, drives())
        if drive is not None:
            return drive
        time.sleep(_LOOK_EVERY_S)
    raise KitError(
        f"no boot loader's drive came within {_APPEARS_WITHIN_S:g} s — mount it, or {_BY_HAND}, and repeat",
        EXIT_NO_DEVICE,
    )


def no_drive() -> KitError:
    """Return the error for the case that no boot loader is mounted, and no board can be sent into its own."""
    return KitError(f"no board in its boot loader is mounted — {_BY_HAND}, mount the drive, and repeat", EXIT_NO_DEVICE)


def matching_drive(image: Image, found: list[Drive]) -> Drive | None:
    """Return the one drive that the image is for, None without any.

    Raises KitError if there are several, or only one of another chip.
    """
    matching = [drive for drive in found if image.chip.startswith(drive.chip)]
    if len(matching) > 1:
        where = ", ".join(str(drive.path) for drive in matching)
        raise KitError(f"several boards are in their boot loader: {where} — unplug the others", EXIT_NO_DEVICE)
    if found and not matching:
        other = found[0]
        raise KitError(
            f"the image is for {image.chip}, and at {other.path} is an {other.chip} — take the other image", EXIT_DEVICE
        )
    return matching[0] if matching else None


def write(image: Image, drive: Drive) -> None:
    """Copy the image and wait until the board has reset. Raises KitError (exit code 5)."""
    target = drive.path / "NEW.UF2"
    try:
        with target.open("wb") as file:
            data = image.file.read_bytes()
            for start in range(0, len(data), _CHUNK):
                file.write(data[start : start + _CHUNK])
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # The board resets at the last block, perhaps before the system has closed the file.
        if (drive.path / _INFO).exists():
            raise KitError(f"{target}: {error.strerror} — {_BY_HAND}, and repeat", EXIT_DEVICE) from error
    deadline = time.monotonic() + _RESETS_WITHIN_S
    while (drive.path / _INFO).exists():
        if time.monotonic() > deadline:
            raise KitError(
                f"the board did not reset within {_RESETS_WITHIN_S:g} s after the copy — is the image for this board? "
                f"{_BY_HAND.capitalize()}, and repeat",
                EXIT_DEVICE,
            )
        time.sleep(_LOOK_EVERY_S)


def _mount_points() -> list[Path]:
    user = getpass.getuser()
    parents = [Path("/media") / user, Path("/run/media") / user, Path("/Volumes"), Path("/media"), Path("/mnt")]
    named = [Path(folder) for folder in os.environ.get(DRIVES, "").split(":") if folder]
    mounted: list[Path] = []
    for parent in parents:
        with contextlib.suppress(OSError):
            mounted += sorted(folder for folder in parent.iterdir() if (folder / _INFO).exists())
    return [*named, *mounted]
