"""Ports that nobody listens on and that are yet nobody else's: one merely closed may be anyone's at once."""

from __future__ import annotations

import socket
import sys

_kept: list[socket.socket] = []


def bound(host: str, port: int = 0) -> socket.socket:
    """A TCP socket that has the port, but does not listen: until it does, whoever connects is refused.

    Raises OSError.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # Connections of the one that listened there before may still be open.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def reserved_port() -> int:
    """Return a port of 127.0.0.1 for a server that cannot pick one and say which, or that comes back on the same one.

    On Linux it stays bound until this process ends: whoever names it and allows reuse, as servers do, can listen on it,
    time and again, but no other program is given it when it asks for any, nor is the end of a connection, which could
    even be one to this very port.
    """
    keeper = bound("127.0.0.1")
    port = keeper.getsockname()[1]
    if sys.platform == "linux":
        _kept.append(keeper)
    else:
        keeper.close()
    return port
