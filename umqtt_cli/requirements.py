"""Checks for what a command needs on this machine, before anything is started."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

from umqtt_cli.errors import EXIT_USAGE, KitError


def require_module(name: str) -> None:
    """Raise ModuleNotFoundError if a module is missing; it becomes a line about the extra that brings it."""
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def require_free_port(host: str, port: int) -> None:
    """Raise KitError if a port that was asked for by number cannot be bound. Port 0 (any free one) always can."""
    if port == 0:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise KitError(
            f"cannot listen on {host}:{port}: {error.strerror or error} — "
            "try another port, or -p 0 to have a free one picked",
            EXIT_USAGE,
        ) from error


def require_writable_folder(path: Path, option: str) -> None:
    """Make the folder if it is missing. Raises KitError if it cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Tested by writing: permission bits say nothing about a read-only file system, and root passes every check.
        probe = path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise KitError(
            f"cannot write into {option} {path}: {error.strerror or error} — give a folder you may write to",
            EXIT_USAGE,
        ) from error
