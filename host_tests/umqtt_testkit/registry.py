"""The registry in which virtual boards are found by name, as a plugged-in board is found by its USB id.

It has one file per board in $XDG_RUNTIME_DIR/umqtt-boards (or, if that variable is missing, umqtt-boards-UID in the
folder for temporary files), which only its owner may enter:

    NAME    {"port": "/dev/pts/7", "board": "UNIX", "image": "/home/me/flash.img"}

The process that is the board holds a lock (flock) on its file as long as it lives, so the entry of a killed board is
known to be stale: its pseudo terminal may belong to another program by now. `python -m umqtt_testkit.board` and
registered() write entries; `umqtt devices` and every command's --device read them. Writers and readers hold the lock
of the file .lock meanwhile, so that an entry being written is not taken for stale, and a reader's lock not for a
running board's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAME_CHARACTERS = "-_.:"
_LOCK = ".lock"


class RegistryError(Exception):
    """The registry cannot be used; str() says why and what to do."""


@dataclass(frozen=True)
class Entry:
    """A running virtual board: its name, its serial port, the folder of its board under boards/, its flash image."""

    name: str
    port: str
    board: str
    image: str


def folder() -> Path:
    """Return the registry's folder, which need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "umqtt-boards"
    return Path(tempfile.gettempdir()) / f"umqtt-boards-{os.getuid()}"


def entries() -> list[Entry]:
    """Return the running boards, by name. Removes the entries of boards that were killed. Raises RegistryError."""
    where = folder()
    if not where.exists():
        return []
    _check_ours(where)
    with _locked(where):
        found = [_read(file) for file in sorted(where.iterdir()) if file.name != _LOCK]
    return [entry for entry in found if entry is not None]


@contextlib.contextmanager
def registered(name: str, port: str, *, board: str = "UNIX", image: str = "") -> Iterator[None]:
    """Register the board under this name within this context. Raises RegistryError if the name is taken or invalid."""
    if not name or not all(letter.isalnum() or letter in _NAME_CHARACTERS for letter in name) or name[0] == ".":
        raise RegistryError(f"{name!r} is no name for a board - use letters, digits and - _ . :")
    where = folder()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_ours(where)
    path = where / name
    with _locked(where):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RegistryError(f"a virtual board named '{name}' runs already - give this one another name") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"port": port, "board": board, "image": image}).encode())
    try:
        yield
    finally:
        # The system owns the folder and may have removed it.
        with contextlib.suppress(FileNotFoundError), _locked(where):
            path.unlink(missing_ok=True)
        _let_go(descriptor)


@contextlib.contextmanager
def _locked(where: Path) -> Iterator[None]:
    # Waits for the current holder, who keeps it only while reading or writing a few lines.
    descriptor = os.open(where / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        _let_go(descriptor)


def _let_go(descriptor: int) -> None:
    # Unlock explicitly: a process that another thread starts at this moment has the file open too, until it runs its
    # program.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _check_ours(where: Path) -> None:
    # In a shared folder for temporary files, another user may have created it first to name ports of their choice.
    status = where.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RegistryError(f"{where} must be a folder of yours that nobody else may enter - try: chmod 700 {where}")


def _read(file: Path) -> Entry | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None  # removed by hand
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _parse(file.name, os.read(descriptor, 4096))
    else:
        # Nobody holds the lock: the board is dead.
        file.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _parse(name: str, text: bytes) -> Entry | None:
    try:
        values = json.loads(text)
        return Entry(name, values["port"], values["board"], values["image"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # written by another program
