"""Server reference of MQTT 5 (4.11): a broker sends its client to another one.

    client = Client("pump-7", "mqtts://broker.example", protocol=5, transports=...)
    client.part("server_reference")

Without this part a client stays with its list of servers. The error contains the reference in either case.
"""

from ._platform import const
from .errors import InvalidArgument, Refused
from .servers import parse_url

_USE_ANOTHER_SERVER = const(0x9C)
_SERVER_MOVED = const(0x9D)


class ServerReference:
    """Makes the next attempt, and only that one, at the first server that the broker named.

    The transport is that of the broker that named it: mqtts never becomes mqtt, and the certificate must be that of
    the server that was named. A reference from that server is not followed. When its link ends, or cannot be made, the
    client goes on with its list of servers.
    """

    def __init__(self, client):
        if client.protocol == 4:
            raise InvalidArgument("a server reference needs protocol=5")
        self._client = client
        self._handle_loss = client._handle_loss
        client._handle_loss = self.handle_loss  # wrapped
        self._follows = False

    def forget(self, session):
        """Does nothing: see handle_loss()."""

    def pump(self):
        return True

    def handle_loss(self, error):
        """Wraps Client._handle_loss(): a server that the error names is tried next."""
        client = self._client
        if self._follows:
            client.servers.pop(client._server)
            self._follows = False
        elif (
            isinstance(error, Refused) and len(error.args) > 3 and error.args[1] in (_USE_ANOTHER_SERVER, _SERVER_MOVED)
        ):
            factory, arguments = client.servers[client._server][:2]
            found = _first(error.args[3], arguments[1])
            if found:
                # Packet ids belong to a broker: see servers.py.
                client.servers.insert(client._server, (factory, found + arguments[2:], "%s:%d" % found))
                client.retry_delay = 0
                self._follows = True
        self._handle_loss(error)


def _first(reference, port):
    # Returns (host, port) of the first server in a reference, such as b"host:port" or b"[::1]:port"; None if it is
    # malformed. port: the default. It may be hostile, and not every MicroPython port can safely look up any text.
    try:
        text = str(reference, "utf-8").split()[0]
        _, host, found, path = parse_url("mqtt://" + text)
    except (InvalidArgument, ValueError, IndexError):
        return None
    for label in host.split("."):
        if not 0 < len(label) < 64:
            return None
        for character in label:
            # "-" to ":" includes the digits, and all of an IPv6 address but its letters.
            if not ("-" <= character <= ":" or "a" <= character.lower() <= "z" or character == "_"):
                return None
    if path != "/":
        return None
    return host, found if ":" in text.split("]")[-1] else port


part = ServerReference  # what Session.part() makes
