"""Shell completion: boards on cables, folders under boards/, devices that the broker knows.

If something fails, nothing is offered, because no error may be shown during completion.
"""

from __future__ import annotations

import contextlib

import click

from umqtt_kit.errors import KitError

_CONNECT_WITHIN_S = 1.0
_RETAINED_WITHIN_S = 0.3


def complete_port(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Return the names for --device that begin with `incomplete`."""
    from umqtt_kit.device import find_ports

    with contextlib.suppress(KitError):
        return _beginning(incomplete, [port.name for port in find_ports()])
    return []


def complete_board(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Return the names for --board that begin with `incomplete`."""
    from umqtt_kit.data import board_folders

    with contextlib.suppress(KitError):
        return _beginning(incomplete, list(board_folders()))
    return []


def complete_device_id(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Return the device ids that begin with `incomplete`.

    They come from the retained statuses at the broker that the command line, environment or umqtt.toml names.
    """
    from umqtt_kit.device_commands import known_devices
    from umqtt_kit.mqtt import for_chosen_broker, make_access

    names = ("username", "password_file", "ca", "cert", "key", "mqtt_version")
    with context.scope(cleanup=False):
        given = for_chosen_broker({name: context.params.get(name) for name in names})
    if given["username"] and not given["password_file"] and "UMQTT_PASSWORD" not in given["environment"]:
        return []  # the command would ask for the password
    with contextlib.suppress(KitError):
        access = make_access(context.params["broker"], **given, timeout_s=_CONNECT_WITHIN_S)
        return _beginning(incomplete, known_devices(access, _RETAINED_WITHIN_S))
    return []


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    # The shell's own script reads lines, so a name with a line end or another control character is left out.
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
