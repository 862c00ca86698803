"""Checks of host names."""

import ipaddress
from collections.abc import Container
from urllib.parse import urlsplit


def is_host(name: str) -> bool:
    """Return whether `name` is an address or a name that can be looked up.

    For any other name, Python's look-up raises UnicodeError instead of OSError.
    """
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def is_loopback(name: str) -> bool:
    """Return whether `name` is certainly this machine: ``localhost`` or a loopback address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def split_server(url: str, schemes: Container[str]) -> tuple[str, str, int | None] | None:
    """Split ``SCHEME://HOST`` or ``SCHEME://HOST:PORT`` into scheme, host and port; None for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in schemes or not is_host(host) or "@" in parts.netloc:
        return None
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return None
    return parts.scheme, host, port
