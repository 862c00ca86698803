"""Makes a new board: a folder like those under boards/, from one that is described already."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template
from typing import Any

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.data import board_folders
from umqtt_kit.device.ports import board_description

_README = Path(__file__).resolve().parent / "templates" / "README.md.txt"
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_KIB = 1024
_BOOT_LOADERS = {
    "esp32": "hold BOOT, press RESET, let BOOT go",
    "rp2": "hold BOOTSEL while you plug it in",
    None: "as its maker says",
}


def make_board(name: str, like: str, folder: Path) -> Path:
    """Write folder/NAME with board.json, pins.py, manifest.py and README.md; return it. Raises KitError."""
    if not _NAME.fullmatch(name):
        raise KitError(f"{name!r} is no name of a board — use capitals, digits and _, a letter first", EXIT_USAGE)
    known = board_folders()
    if like not in known:
        raise KitError(f"--like {like}: there is no such board — known are: {', '.join(sorted(known))}", EXIT_USAGE)
    if name in known:
        raise KitError(f"{name} is described already, in {known[name]} — choose another name", EXIT_USAGE)
    target = folder / name
    try:
        files = _files(name, like, known[like])
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        problem = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise KitError(f"--like {like}: {known[like]}: {problem} — correct its files", EXIT_USAGE) from error
    try:
        target.mkdir(parents=True)
        for file, text in files.items():
            (target / file).write_text(text)
    except FileExistsError as error:
        raise KitError(f"{target} is there already — choose another name, or remove it", EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"{target}: {error.strerror} — choose another --folder", EXIT_USAGE) from error
    return target


def _files(name: str, like: str, described: Path) -> dict[str, str]:
    """Return the texts of the files of a new board, by file name."""
    values: dict[str, Any] = board_description(like)
    values |= {
        "name": name,
        "description": f"{name}, described like {like}",
        # Two boards with the same machine text could not be told apart.
        "machine": f"{name} with {values['mcu']}",
        "firmware_image": (values["firmware_image"] or "").replace(like, name) or None,
    }
    manifest = (described / "manifest.py").read_text()
    return {
        "board.json": json.dumps(values, indent=2, ensure_ascii=False) + "\n",
        "pins.py": (described / "pins.py").read_text(),
        # What MicroPython itself freezes stays that of the other board.
        "manifest.py": manifest.replace(f"BOARD={like}", f"BOARD={name}").replace(
            f"$PWD/boards/{like}/", f"$PWD/boards/{name}/"
        ),
        "README.md": _readme(values, like),
    }


def _readme(values: dict[str, Any], like: str) -> str:
    littlefs = values["littlefs"]
    return Template(_README.read_text()).substitute(
        name=values["name"],
        description=values["description"],
        mcu=values["mcu"],
        like=like,
        flash_kib=values["flash_bytes"] // _KIB,
        littlefs_kib=littlefs["block_size"] * littlefs["block_count"] // _KIB,
        ram_kib=values["ram_bytes"] // _KIB,
        wiring="\n".join(f"| {role} | {pin} |" for role, pin in values["pins"].items()),
        boot_loader=_BOOT_LOADERS[values["sys_platform"]],
    )
