"""Finds the address of a time server. Loaded until it is found, and again when another one is wanted."""

from app.names import Lookup, is_name, is_ports_turn


def find(ntp, socket):
    """Return the address (of getaddrinfo()) that app.ntp.Ntp is to ask; None while its name is being looked up.

    socket: the module. Raises OSError.
    """
    servers = ntp.wifi.name_servers()
    if servers and not ntp.lookup and is_name(ntp.host) and not is_ports_turn(ntp.failures):
        ntp.lookup = Lookup(ntp.host, servers, ntp.clock.uptime_ms)
    texts = ntp.lookup.step() if ntp.lookup else (ntp.host,)
    if not texts:
        return None
    found = []
    for text in texts:
        for entry in socket.getaddrinfo(text, ntp.port, 0, socket.SOCK_DGRAM):
            if entry[-1] not in ntp.denied:
                found.append(entry)
    ntp.failures = 0
    if not found:
        raise OSError("each of its servers denies its service")
    ntp.alone = len(found) == 1
    return found[ntp.turn % len(found)]
