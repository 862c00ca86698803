"""Reserved ports, on which nobody listens and which no other program is given; a closed port may be taken at once."""

from __future__ import annotations

import socket
import sys

_kept: list[socket.socket] = []


def bound(host: str, port: int = 0) -> socket.socket:
    """Return a TCP socket bound to the port but not listening: until it listens, connections are refused.

    Raises OSError.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # Connections of an earlier listener on this port may still be open.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def reserved_port() -> int:
    """Return a port of 127.0.0.1 for a server that must be told its port, or that comes back on the same one.

    On Linux it stays bound until this process ends: a server that names it and allows reuse, as servers do, can
    listen on it again and again. But the system gives it to no other program that asks for any port, nor to the local
    end of a connection, which could otherwise even connect to this very port.
    """
    keeper = bound("127.0.0.1")
    port = keeper.getsockname()[1]
    if sys.platform == "linux":
        _kept.append(keeper)
    else:
        keeper.close()
    return port
