"""Where clients reach the broker."""

import errno
import socket

from .config import Listener
from .errors import BrokerError, ConfigError, PortInUse

BACKLOG = 4096


def open_socket(listener: Listener) -> socket.socket:
    """Return a listening TCP socket. Raises PortInUse, ConfigError or BrokerError."""
    host, port = listener.host, listener.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot find an address for host {host!r} ({error}) — use an IP address") from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from error
        raise BrokerError(
            f"cannot listen on {host} port {port} ({error.strerror}) — choose another with --host or -p"
        ) from error
    return listening
