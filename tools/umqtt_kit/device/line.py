"""The serial port under mpremote: every wait has a deadline, and every failure says what to do.

mpremote's own waits end in different ways, or never: a board that prints for ever keeps it reading, and an answer
that is cut short keeps it waiting. Line wraps pyserial's port for mpremote, in the place where mpremote puts a wrapper
of its own while it mounts a folder.
"""

from __future__ import annotations

import errno
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

from umqtt_cli.errors import EXIT_NO_DEVICE, KitError

if TYPE_CHECKING:
    import serial

_READ_SIZE = 4096
_WRITE_WITHIN_S = 5.0
# Files that the process of a virtual board has open.
_MASTERS = {"/dev/ptmx", "/dev/pts/ptmx"}


class Late(Exception):
    """The deadline has passed.

    talking: bytes came in the second half of that time, so the board is alive but does something else.
    """

    def __init__(self, talking: bool) -> None:
        super().__init__("late")
        self.talking = talking


class PortBusy(KitError):
    """Another program has the port open. known: whether it is known which one."""

    def __init__(self, path: str, user: str | None) -> None:
        who = user or "another program"
        super().__init__(f"{path}: {who} has this port open — close it and repeat", EXIT_NO_DEVICE)
        self.known = user is not None


class Line:
    """A stand-in for the pyserial port that mpremote uses. Raises Late, and KitError if the port is gone.

    name: for the error texts.
    """

    def __init__(self, port: serial.Serial, name: str) -> None:
        self._port = port
        self._name = name
        self._arrived = bytearray()
        self._last_arrival = 0.0
        self.allow(_WRITE_WITHIN_S)
        port.write_timeout = _WRITE_WITHIN_S

    def allow(self, seconds: float) -> None:
        """Set the deadline: from now on every wait ends after so many seconds."""
        self._began = time.monotonic()
        self._deadline = self._began + seconds

    def read(self, size: int = 1) -> bytes:
        """Return exactly `size` bytes."""
        while len(self._arrived) < size:
            self._wait()
        data = bytes(self._arrived[:size])
        del self._arrived[:size]
        return data

    def inWaiting(self) -> int:
        """Return how many bytes read() returns without waiting. mpremote loops on it, so it raises Late too."""
        self._check_deadline()
        if not self._arrived:
            self._take()
        return len(self._arrived)

    def write(self, data: bytes) -> int | None:
        import serial

        try:
            return self._port.write(data)
        except serial.SerialTimeoutException:
            raise Late(talking=False) from None
        except (serial.SerialException, OSError) as error:
            raise gone(self._name) from error

    def close(self) -> None:
        self._port.close()

    @property
    def fd(self) -> int:
        return self._port.fileno()

    # mpremote lowers these before it closes, so that some boards do not reset.
    @property
    def rts(self) -> bool:
        return self._port.rts

    @rts.setter
    def rts(self, value: bool) -> None:
        self._port.rts = value

    @property
    def dtr(self) -> bool:
        return self._port.dtr

    @dtr.setter
    def dtr(self, value: bool) -> None:
        self._port.dtr = value

    def _wait(self) -> None:
        left = self._check_deadline()
        readable, _, _ = select.select([self._port.fileno()], [], [], left)
        if readable:
            self._take()

    def _take(self) -> None:
        import serial

        try:
            waiting = self._port.in_waiting
            # A port whose cable was pulled is readable and has nothing to read: pyserial makes an error of that.
            if not waiting and not select.select([self._port.fileno()], [], [], 0)[0]:
                return
            self._arrived += self._port.read(min(max(waiting, 1), _READ_SIZE))
        except (serial.SerialException, OSError) as error:
            raise gone(self._name) from error
        self._last_arrival = time.monotonic()

    def _check_deadline(self) -> float:
        # Returns the seconds left.
        now = time.monotonic()
        if now >= self._deadline:
            # If this process was suspended, bytes that came meanwhile are waiting.
            self._take()
            raise Late(talking=self._last_arrival >= (self._began + self._deadline) / 2)
        return self._deadline - now


def gone(name: str) -> KitError:
    """Return the error for a port that was there a moment ago."""
    return KitError(f"{name}: the board is gone — plug it in again and repeat the command", EXIT_NO_DEVICE)


def open_serial(path: str, *, baudrate: int = 115200, timeout_s: float = 0.1) -> serial.Serial:
    """Open the port for this process alone; read() waits up to timeout_s. Raises KitError (exit code 3).

    For commands that only listen, such as `umqtt logs`.
    """
    import serial

    try:
        return serial.Serial(path, baudrate=baudrate, timeout=timeout_s, exclusive=True)
    except (serial.SerialException, OSError) as error:
        raise why_not_open(path, error) from error


def why_not_open(path: str, error: OSError) -> KitError:
    """Return the error that tells the user why a port cannot be opened."""
    number = error.errno
    if number == errno.ENOENT or not os.path.exists(path):
        return KitError(f"there is no port {path} — try: umqtt devices", EXIT_NO_DEVICE)
    if number in (errno.EACCES, errno.EPERM):
        return KitError(f"{path}: you may not open this port — {_permission_remedy(path)}", EXIT_NO_DEVICE)
    if number in (errno.EAGAIN, errno.EBUSY):
        return PortBusy(path, _used_by(path))
    if number == errno.EIO:
        return gone(path)
    return KitError(f"{path}: {error.strerror or error} — try: umqtt devices", EXIT_NO_DEVICE)


def _permission_remedy(path: str) -> str:
    import grp

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (KeyError, OSError):
        group = "dialout"
    return f"try: sudo usermod -aG {group} $USER, and log in again"


def _used_by(path: str) -> str | None:
    """Return `NAME (pid N)` of a process of this user that has the port open, if the system tells (Linux)."""
    real = os.path.realpath(path)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = {os.readlink(descriptor) for descriptor in (process / "fd").iterdir()}
            # The process of a virtual board has its port open as well, and is not in the way.
            if real in opened and not opened & _MASTERS and process.name != str(os.getpid()):
                return program_name(int(process.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return None


def program_name(pid: int) -> str:
    """Return `NAME (pid N)`. Raises OSError if the system does not tell."""
    return f"{_program(Path(f'/proc/{pid}/cmdline').read_bytes().split(bytes(1)))} (pid {pid})"


def _program(command: list[bytes]) -> str:
    """Return what a person calls it: `mpremote` for `python -m mpremote …`, `umqtt logs` for `…/bin/umqtt logs`."""
    words = [os.fsdecode(word) for word in command if word]
    if words and Path(words[0]).name.startswith("python"):
        words = [word for word in words[1:] if word == "umqtt_cli" or not word.startswith("-")]
    if not words:
        return "a program"
    name = Path(words[0]).name
    if name in ("umqtt", "umqtt_cli"):
        return " ".join(["umqtt", *words[1:2]])
    return name
