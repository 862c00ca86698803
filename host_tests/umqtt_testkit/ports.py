"""Ports that are refused and yet nobody else's."""

from __future__ import annotations

import socket


def bound(host: str, port: int = 0) -> socket.socket:
    """A TCP socket that has the port, but does not listen: until it does, whoever connects is refused.

    A port that is merely closed may be anybody's a moment later. Raises OSError.
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
