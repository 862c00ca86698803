"""Downloads objects of an update by HTTP/1.0: GET {url}{sha256}, from an offset on if the server supports that.

Nothing here blocks, except the look-up of a name that names.py does not handle. With https, the server's certificate
is checked like the broker's: with the authority in secrets.json.
"""

from app.commands import CommandError
from umqtt_robust.errors import InvalidArgument, MQTTError
from umqtt_robust.servers import parse_url

_LONGEST_HEAD = 2048
_PIECE = 256
_WANTED = "url must be like http://host:port/folder/"


def parse(url, transports):
    """Return (factory of the transport, host, port, path of the folder) for a URL. Raises CommandError."""
    try:
        scheme, host, port, path = parse_url(url)
    except InvalidArgument:
        raise CommandError(_WANTED) from None
    if scheme not in ("http", "https"):
        raise CommandError(_WANTED)
    if path[-1] != "/":
        path += "/"
    if scheme == "https":
        factory = transports.get("mqtts")
        if not factory:
            raise CommandError("https needs tls.ca in secrets.json")
        return factory, host, port, path
    factory = transports.get("mqtt")
    if factory:
        return factory, host, port, path
    try:
        from umqtt_robust import TCP  # the library as it is deployed: one module
    except ImportError:
        from umqtt_robust.transport import TCP

    return lambda host, port, path: TCP(host, port), host, port, path


class Http:
    """A source for update.py. open(sha256, offset) begins an object; close() ends it; end() ends the update.

    read(buf) returns the number of bytes read, None if there are none yet, 0 at the end of the object.
    """

    def __init__(self, url, transports, board):
        self._factory, self._host, self._port, self._folder = parse(url, transports)
        if self._host.strip("0123456789."):
            from app.names import ByName

            self._factory = ByName(board, self._factory)
        self._transport = None

    def open(self, sha256, offset):
        self.close()
        host = "[%s]" % self._host if ":" in self._host else self._host
        self._out = (
            "GET %s%s HTTP/1.0\r\nHost: %s:%d\r\nConnection: close\r\n%s\r\n"
            % (self._folder, sha256, host, self._port, "Range: bytes=%d-\r\n" % offset if offset else "")
        ).encode()
        self._offset = offset
        self._head = b""
        self._in_head = True
        self._rest = b""
        self._skip = 0
        self._left = None

    def read(self, buf):
        """Read into buf. Raises OSError if the server is gone, is not trusted, or gives an unexpected answer."""
        try:
            return self._read(buf)
        except MQTTError as error:
            # From the transport: a refused certificate or an unset clock may be temporary, so it is retried.
            raise OSError(repr(error))

    def _read(self, buf):
        transport = self._transport
        if not transport:
            transport = self._transport = self._factory(self._host, self._port, self._folder)
        if not transport.ready():
            return None
        if self._out:
            taken = transport.write(self._out, 0, len(self._out))
            self._out = self._out[taken or 0 :]
            return None
        if self._in_head:
            return self._read_head(buf)
        if self._rest:
            n = min(len(self._rest), len(buf))
            buf[:n] = self._rest[:n]
            self._rest = self._rest[n:]
        else:
            n = transport.read(buf, 0)
        if n is None:
            return None
        if n == 0:
            if self._left:
                raise OSError("the connection ended early")
            return 0
        if self._left is not None:
            self._left -= n
        if self._skip:
            # The server ignores the range and sends from the start.
            skipped = min(self._skip, n)
            self._skip -= skipped
            if skipped == n:
                return None
            buf[: n - skipped] = bytes(memoryview(buf)[skipped:n])
            n -= skipped
        return n

    def _read_head(self, buf):
        piece = bytearray(_PIECE)
        n = self._transport.read(piece, 0)
        if n == 0:
            raise OSError("no answer")
        if not n:
            return None
        self._head += bytes(memoryview(piece)[:n])
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _LONGEST_HEAD:
                raise OSError("the answer's head is too long")
            return None
        self._rest = self._head[end + 4 :]
        lines = self._head[:end].split(b"\r\n")
        self._head = b""
        self._in_head = False
        status = lines[0].split(b" ")
        code = status[1] if len(status) > 1 else b""
        if code == b"200":
            self._skip = self._offset
        elif code != b"206":
            raise OSError("the server answered %r" % lines[0])
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and value.strip().isdigit():
                self._left = int(value)
        return None

    def close(self):
        if self._transport:
            self._transport.close()
            self._transport = None

    def end(self):
        self.close()
