"""The client at the other end of a transport: its address, and whether it is still there."""

import asyncio
import select
import socket
import struct

from ..access.shares import network

# Process, user and group of the program at the other end of a Unix socket. Only Linux has it.
_CREDENTIALS = struct.Struct("3i")

# Reported for a connection that the peer has closed, even if data before its end is not read yet. Only Linux has it.
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the IP address of a client, or the path of the Unix socket to which it is connected."""
    name = transport.get_extra_info("peername")
    # Clients of a Unix socket have no address of their own.
    return str(name[0]) if isinstance(name, tuple) else str(transport.get_extra_info("sockname") or "unix")


def client_share(transport: asyncio.BaseTransport) -> str:
    """Return what the client's connections count as, see Shares: its network, or its user on a Unix socket."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple):
        return network(str(name[0]))
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(socket, "SO_PEERCRED"):
        return ""
    _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return f"user {user}"


def has_closed(transport: asyncio.BaseTransport) -> bool:
    """Return True if the client is known to have closed the connection, also if nothing is read from it now."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return False
    poll = select.poll()
    poll.register(connected.fileno(), _PEER_CLOSED)
    return bool(poll.poll(0))
