"""What may stand for a host."""


def is_host(name: str) -> bool:
    """Whether `name` is an address or can be asked for: Python raises no OSError for a name that cannot."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False
