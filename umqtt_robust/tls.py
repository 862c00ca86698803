"""TLS for mqtts://, always with a verified certificate.

    from umqtt_robust.tls import TLS

    Client("pump-7", "mqtts://broker.example", transports={"mqtts": TLS("/ca.pem")})

read() and write() carry out the handshake, and transfer nothing until it is done.
"""

import select
from binascii import a2b_base64
from errno import EINVAL
from time import gmtime

from ._platform import const, poll
from .errors import InvalidArgument, LinkLost
from .transport import TCP

try:
    import micropython  # noqa: F401 - on a host, a module called tls is another one
    import tls
except ImportError:
    from ._host import tls


# The year of this release: an earlier one is wrong. A clock that was never set says 1970, 2000 or, on rp2, 2021.
_BUILT = const(2026)


class ClockNotSet(LinkLost):
    """The clock is not set, so an expired certificate would pass: set it first, for instance by ntptime.settime()."""


class CertificateRefused(LinkLost):
    """The broker's certificate is not trusted; args[0]: why, in the words of the TLS library."""


def TLS(ca, cert=None, key=None, server_name=None):
    """Returns a factory of TLS transports, for Client(transports={"mqtts": ...}).

    ca: the certificates that are trusted to sign a broker's. cert, key: a client's certificate, followed by the
    intermediate ones that signed it, and its private key, for a broker that asks for them. Each is the path of a file
    (str), or bytes; DER or PEM. Or ca is an SSLContext that has them, with verify_mode CERT_REQUIRED. server_name: the
    name that the broker's certificate must have, if it is not the host of the URL.

    Raises InvalidArgument.
    """
    if not ca or bool(cert) != bool(key):
        raise InvalidArgument("TLS needs ca; cert and key go together")
    if hasattr(ca, "wrap_socket"):
        context = ca
        if context.verify_mode != 2:
            raise InvalidArgument("an SSLContext must have verify_mode CERT_REQUIRED")
    else:
        context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
        try:
            for one in _der(ca):
                context.load_verify_locations(one)
            # The ports add each to the chain that they send: the client's own first, then those that signed it.
            for one in _der(cert) if cert else ():
                context.load_cert_chain(one, _der(key)[-1])
        except (OSError, ValueError, TypeError, IndexError) as error:
            raise InvalidArgument("ca, cert or key: %s" % error)
    return lambda host, port, path: _Secure(context, server_name or host, host, port)


def with_arguments(context, arguments):
    # Returns TLS() of umqtt.simple's ssl and ssl_params. An OSError is what programs for umqtt catch.
    get = arguments.get
    if not hasattr(context, "wrap_socket"):
        context = get("cadata")
        if not context:
            raise OSError(EINVAL, "ssl_params needs cadata: the certificate of the CA that signed the server's")
    return TLS(context, get("cert"), get("key"), get("server_hostname"))


def _der(source):
    # Returns the blocks as DER, because not every port reads PEM. A private key is the last block of its file.
    if isinstance(source, str):
        with open(source, "rb") as file:
            source = file.read()
    return [a2b_base64(block) for block in source.split(b"-----")[2::4]] if b"-----BEGIN" in source else [source]


class _Secure(TCP):
    def __init__(self, context, server_name, host, port):
        if gmtime()[0] < _BUILT:
            raise ClockNotSet("set the clock before TLS: it says %d" % gmtime()[0])
        self._tls = context, server_name
        self._plain = None
        self._owed = 0
        self._ended = False
        TCP.__init__(self, host, port)

    def ready(self):
        if not self._plain and TCP.ready(self):
            self._plain = self.socket
            context, server_name = self._tls
            self.socket = context.wrap_socket(self._plain, do_handshake_on_connect=False, server_hostname=server_name)
            self._poller = poll()
            self._poller.register(self.socket, select.POLLIN)
        return self._plain is not None

    def read(self, buf, offset):
        n = 0 if self._ended else self._verified(TCP.read, buf, offset)
        self._ended = n == 0  # after close_notify the ports return None
        return n

    def write(self, buf, offset, size):
        # Bytes that were not sent are already encrypted, so the next write must be of the same bytes and no more:
        # mbedTLS would count the rest as sent.
        size = self._owed or size
        n = self._verified(TCP.write, buf, offset, size)
        self._owed = size - (n or 0)
        return n

    def _verified(self, do, *arguments):
        try:
            return do(self, *arguments)
        except (OSError, ValueError) as error:
            # -0x2700 is mbedTLS's code for this, if it has no memory for the reason.
            if error.args[0] != -0x2700 and not isinstance(error, ValueError):
                raise
            raise CertificateRefused(str(error).strip())

    def close(self):
        TCP.close(self)
        if self._plain:
            self._plain.close()  # after a failed handshake the wrapped socket does not
