"""Ports for programs that cannot choose one themselves and say which, or that come back on the same one."""

import socket
import sys

_kept: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that is nobody else's until this process ends.

    On Linux it stays bound: whoever names it and allows reuse can listen on it, time and again, but no other program is
    given it when it asks for any, nor is the end of a connection, which could even be one to this very port.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port = keeper.getsockname()[1]
    if sys.platform == "linux":
        _kept.append(keeper)
    else:
        keeper.close()
    return port
