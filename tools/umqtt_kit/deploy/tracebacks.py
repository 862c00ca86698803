"""Tracebacks of boards, in the files, lines and functions of the readable firmware."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from umqtt_kit.app_bundle import AppBundle
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy.build import build


def readable(text: str, files: Mapping[str, str], board: str) -> str:
    """Return the traceback `text` of a board with what its lines are in the readable firmware.

    files: the SHA-256 of the files on the board, by path. If its application is not the one of this installation, the
    text is returned as it is.
    """
    here = build(board, ()).files
    application = {path: content for path, content in here.items() if path.startswith("/app/")}
    if any(files.get(path) != hashlib.sha256(content).hexdigest() for path, content in application.items()):
        return text
    return AppBundle(firmware_folder()).readable(text)
