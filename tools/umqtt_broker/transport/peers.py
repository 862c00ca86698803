"""The address of the client at the other end of a transport."""

import asyncio


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the IP address of a client, or the path of the Unix socket to which it is connected."""
    name = transport.get_extra_info("peername")
    # Clients of a Unix socket have no address of their own.
    return str(name[0]) if isinstance(name, tuple) else str(transport.get_extra_info("sockname") or "unix")
