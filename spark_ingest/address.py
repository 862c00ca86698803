"""The type of command-line options for an address to listen on."""

from typing import Any

import click

from .hosts import is_host


class Address(click.ParamType):
    """The option type ``[HOST:]PORT``; without HOST, the address is 127.0.0.1."""

    name = "[HOST:]PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Convert the text to (host, port), or fail with an error message of one line."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        # Without a host, only this machine can connect.
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdecimal() or len(port) > 5 or int(port) > 65535 or not is_host(host):
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host, int(port)
