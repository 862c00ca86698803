"""What the shell offers after <TAB>: boards on cables, folders under boards/, devices that the broker knows.

Whatever fails offers nothing: a shell that completes shows no error.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import click

from umqtt_kit.errors import KitError

_CONNECT_WITHIN_S = 1.0
_RETAINED_WITHIN_S = 0.3


def complete_port(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Names for --device."""
    from umqtt_kit.device import find_ports

    with contextlib.suppress(KitError):
        return _beginning(incomplete, [port.name for port in find_ports()])
    return []


def complete_board(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Names for --board."""
    from umqtt_kit.data import board_folders

    with contextlib.suppress(KitError):
        return _beginning(incomplete, list(board_folders()))
    return []


def complete_device_id(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Device ids, from the retained statuses at the broker that the command line, environment or umqtt.toml names."""
    from umqtt_kit.mqtt import make_access
    from umqtt_kit.remote import known_devices

    given: dict[str, Any] = {
        name: context.params.get(name) for name in ("username", "password_file", "ca", "cert", "key", "mqtt_version")
    }
    if given["username"] and not given["password_file"] and "UMQTT_PASSWORD" not in os.environ:
        return []  # it would be asked for
    with contextlib.suppress(KitError):
        access = make_access(context.params["broker"], **given, timeout_s=_CONNECT_WITHIN_S)
        return _beginning(incomplete, known_devices(access, _RETAINED_WITHIN_S))
    return []


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    # The shell's own script reads lines: a name with an end of line in it, or any other control, is none.
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
