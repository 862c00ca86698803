"""What may stand for a host, and on the command line for an address."""

import ipaddress
from typing import Any

import click


def is_host(name: str) -> bool:
    """Whether `name` is an address or can be asked for: Python raises no OSError for a name that cannot."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


class Address(click.ParamType):
    """``PORT`` of this machine alone, or ``HOST:PORT``."""

    name = "[HOST:]PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """(host, port); fails with one line for people."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        # Only this machine, unless an address is given.
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdecimal() or len(port) > 5 or int(port) > 65535 or not is_host(host):
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host, int(port)
def is_loopback(name: str) -> bool:
    """Whether `name` is certain to be this machine: ``localhost`` or a loopback address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
