"""Checks of host names."""

import ipaddress


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
