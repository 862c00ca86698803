"""Checks of host names."""


def is_host(name: str) -> bool:
    """Return whether `name` is an address or a name that can be looked up.

    For any other name, Python's look-up raises UnicodeError instead of OSError.
    """
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False
