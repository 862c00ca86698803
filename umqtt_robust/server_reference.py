"""Server reference of MQTT 5 (4.11): a broker sends its client to another one.

    client = Client("pump-7", "mqtts://broker.example", protocol=5, transports=...)
    client.part("server_reference")

Without this part a client stays with its list of servers; it is told of the reference by the error in any case.
"""

from ._platform import const
from .errors import InvalidArgument, Refused
from .servers import parse_url

_USE_ANOTHER_SERVER = const(0x9C)
_SERVER_MOVED = const(0x9D)


class ServerReference:
    """Makes the next attempt, and only that one, at the first server that the broker named.

    The transport stays the one that led to the broker: from mqtts never to mqtt, and the certificate must be that of
    the server that was named. It names no further one. When its link ends, or cannot be made, the list of servers goes
    on.
    """

    def __init__(self, client):
        if client.protocol == 4:
            raise InvalidArgument("a server reference needs protocol=5")
        self._client = client
        self._handle_loss = client._handle_loss
        client._handle_loss = self.handle_loss  # this stands before it
        self._follows = False

    def forget(self, session):
        """The link is gone: see handle_loss()."""

    def pump(self):
        return True

    def handle_loss(self, error):
        """Client._handle_loss(), with another server to try where the error names one."""
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
    # (host, port) of the first server in a reference, such as b"host", b"host:port" and b"[::1]:port"; None: it is
    # none. port: where it names none. A hostile broker wrote it, and not every port looks up any text without harm.
    try:
        text = str(reference, "utf-8").split()[0]
        _, host, found, path = parse_url("mqtt://" + text)
    except (InvalidArgument, ValueError, IndexError):
        return None
    for label in host.split("."):
        if not 0 < len(label) < 64:
            return None
        for character in label:
            # Digits, "-" and ":" of an IPv6 address lie between the first two.
            if not ("-" <= character <= ":" or "a" <= character.lower() <= "z" or character == "_"):
                return None
    if path != "/":
        return None
    return host, found if ":" in text.split("]")[-1] else port


part = ServerReference  # what Session.part() makes
