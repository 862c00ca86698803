"""Finds firmware, boards and device library: package data when installed, folders in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from umqtt_cli.errors import EXIT_MISSING, EXIT_USAGE, KitError

_PACKAGE = Path(__file__).resolve().parent


def firmware_folder() -> Path:
    """Return the folder that holds boot.py, main.py and app. Raises KitError if it is missing."""
    return _folder("firmware", "main.py")


def boards_folder() -> Path:
    """Return the folder that holds one folder for each board. Raises KitError if it is missing."""
    return _folder("boards", "UNIX/board.json")


def board_folders() -> dict[str, Path]:
    """Return the folder of each described board, by the board's name. Raises KitError.

    The folder named by UMQTT_BOARDS adds the user's own boards, which replace those of the same name here.
    """
    own = os.environ.get("UMQTT_BOARDS")
    if own and not Path(own).is_dir():
        raise KitError(f"UMQTT_BOARDS={own} is not a folder — correct it, or take it out", EXIT_USAGE)
    places = [boards_folder(), *([Path(own)] if own else [])]
    return {file.parent.name: file.parent for place in places for file in sorted(place.glob("*/board.json"))}


def _folder(name: str, must_hold: str) -> Path:
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent.parent / name):
        if (folder / must_hold).is_file():
            return folder
    raise KitError(
        f"the folder {name} is missing — in a checkout of the project: pip install --force-reinstall '.[kit]'",
        EXIT_MISSING,
    )
