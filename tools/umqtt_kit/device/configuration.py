"""settings.json and secrets.json of a board, read over the cable and checked by the firmware's own functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit.device.board import Board
from umqtt_kit.firmware_settings import settings_module

SETTINGS = "/settings.json"
SECRETS = "/secrets.json"


@dataclass(frozen=True)
class Configuration:
    """The two files of a board. settings, secrets: as in the files, without defaults; None: there is no such file."""

    settings: dict[str, Any] | None
    secrets: dict[str, Any] | None = field(repr=False)

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """Those sections of the secrets that are objects, as copies."""
        return {name: dict(section) for name, section in (self.secrets or {}).items() if isinstance(section, dict)}

    def checked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return settings and secrets with defaults filled in.

        Raises the firmware's SettingsError, a ValueError whose text is one line.
        """
        return check(self.settings or {}, self.secrets or {})


def check(settings: object, secrets: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a board would make of these values. Raises the firmware's SettingsError (a ValueError)."""
    firmware = settings_module()
    checked = firmware.check_settings(settings), firmware.check_secrets(secrets)
    firmware.check_together(*checked)
    return checked


def read_configuration(board: Board) -> Configuration:
    """Read both files from a board. Raises KitError (exit code 5) if a file is not a JSON object."""
    return Configuration(_read(board, SETTINGS), _read(board, SECRETS))


def _read(board: Board, path: str) -> dict[str, Any] | None:
    text = board.get(path)
    if text is None:
        return None
    try:
        values = loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        remedy = f"remove it: mpremote connect {board.path} fs rm :{path}, then: umqtt provision"
        raise KitError(f"{path[1:]} on the board is not a JSON object — {remedy}", EXIT_DEVICE)
    return values
