"""What may stand for a host."""

import ipaddress


def is_host(name: str) -> bool:
    """Whether `name` is an address or can be asked for: Python raises no OSError for a name that cannot."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def is_loopback(name: str) -> bool:
    """Whether `name` is certain to be this machine: ``localhost`` or a loopback address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
