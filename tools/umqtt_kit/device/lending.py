"""Lends a port that one command only listens at to another that has to talk: `umqtt logs` goes on beside doctor.

A listening command offers its port at a socket whose name follows from the port's path. A command that finds the port
taken connects to the socket, reads one byte when the port is free, and keeps the connection for as long as it needs
the port. Both check that the other belongs to the same user, so no other user's command gets a port or is trusted.
Only Linux has sockets of this kind; elsewhere nothing is offered, and the port is busy.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator

from umqtt_kit.device.line import program_name

_HAS_NAMES = sys.platform == "linux"
_FREE = b"\1"
_ANSWERS_WITHIN_S = 2.0


class Loan:
    """A loan of a port, seen from either side. fileno() becomes readable when the loan ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def borrower(self) -> str:
        """`NAME (pid N)` of the borrower, as far as the system tells."""
        try:
            return program_name(_peer(self._connection)[0])
        except OSError:
            return "another command"

    def say_free(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(_FREE)

    def close(self) -> None:
        """End the loan: the port is free, or no longer needed."""
        self._connection.close()


class Offer:
    """The offer of a port that is open here. fileno() becomes readable when somebody asks for it."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket = listener

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> Loan | None:
        """Return the loan that was asked for, or None. The caller then closes the port and calls say_free()."""
        try:
            connection = self._socket.accept()[0]
        except OSError:  # the asking command has gone
            return None
        if not _is_ours(connection):
            connection.close()
            return None
        return Loan(connection)

    def close(self) -> None:
        self._socket.close()


def offer(path: str) -> Offer | None:
    """Offer the port at `path`, which is open here; return None if that is not possible."""
    if not _HAS_NAMES:
        return None
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    try:
        listener.bind(_name(path))
        listener.listen(1)
    except OSError:  # the path is too long, or the name is taken (the port itself can be open only once)
        listener.close()
        return None
    return Offer(listener)


def borrow(path: str) -> Loan | None:
    """Borrow the port at `path` from the command that listens there; return None if there is none.

    close() ends the loan.
    """
    if not _HAS_NAMES:
        return None
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWERS_WITHIN_S)
    with contextlib.suppress(OSError):
        connection.connect(_name(path))
        if _is_ours(connection) and connection.recv(1) == _FREE:
            return Loan(connection)
    connection.close()
    return None


@contextlib.contextmanager
def borrowed(path: str) -> Iterator[None]:
    """Within the context, a command that listens at the port at `path` lets others open it."""
    with contextlib.closing(loan) if (loan := borrow(path)) else contextlib.nullcontext():
        yield


def _name(path: str) -> str:
    # An abstract name: no file is left behind, however the process ends.
    return f"\0umqtt-port-{os.getuid()}-{os.path.realpath(path)}"


def _peer(connection: socket.socket) -> tuple[int, int]:
    # Returns its process id and its user id.
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def _is_ours(connection: socket.socket) -> bool:
    return _peer(connection)[1] == os.getuid()
