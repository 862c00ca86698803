"""The option type of an address to listen on."""

from typing import Any

import click

from .hosts import is_host


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
