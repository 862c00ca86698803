"""What a command needs on this machine, looked for before anything is started."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from umqtt_kit.errors import EXIT_MISSING, EXIT_USAGE, KitError

# Spark 4 runs on Java 17 and newer.
_OLDEST_JAVA = 17
_JAVA_ANSWERS_WITHIN_S = 20.0
_GET_JAVA = "apt install openjdk-17-jre-headless, or brew install openjdk@17, or set JAVA_HOME"


def require_java() -> None:
    """Raises KitError unless the Java that Spark would start is new enough.

    Without this Spark ends in a traceback that does not name Java.
    """
    home = os.environ.get("JAVA_HOME")
    # Spark prefers JAVA_HOME, and does not fall back to PATH when it is wrong.
    command = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(command) is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise KitError(f"Spark needs Java {_OLDEST_JAVA} or newer; there is none {where} — {_GET_JAVA}", EXIT_MISSING)
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"{command} -version did not answer ({error}) — {_GET_JAVA}", EXIT_MISSING) from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        # macOS has a `java` that only says that there is no Java.
        raise KitError(f"{command} -version tells no version — {_GET_JAVA}", EXIT_MISSING)
    if int(found[1]) < _OLDEST_JAVA:
        raise KitError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {command} is Java {found[1]} — {_GET_JAVA}",
            EXIT_MISSING,
        )


def require_module(name: str, extra: str) -> None:
    """Raises KitError unless the module is installed; extra: the extra of umqtt-robust that brings it."""
    if importlib.util.find_spec(name) is None:
        raise KitError(f"the package {name} is missing — try: pip install 'umqtt-robust[{extra}]'", EXIT_MISSING)


def require_free_port(host: str, port: int) -> None:
    """Raises KitError when a port asked for by number cannot be had. Port 0 (any free one) always can."""
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
    """Make the folder if it is missing. Raises KitError when that or writing into it is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Asked by doing: permission bits say nothing about a read-only file system, and root passes every
        # check.
        probe = path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise KitError(
            f"cannot write into {option} {path}: {error.strerror or error} — give a folder you may write to",
            EXIT_USAGE,
        ) from error
