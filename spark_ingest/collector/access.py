"""How a collector reaches its broker: address, TLS and credentials.

The files are read again for every connection, so a renewed certificate or a changed password needs no restart.
"""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from umqtt_robust.errors import InvalidArgument
from umqtt_robust.topics import check_utf8

from ..errors import UsageError
from ..hosts import is_host

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_LONGEST_FIELD = 65535


@dataclass(frozen=True)
class Access:
    """The address of a broker and the credentials of a collector.

    :ivar url: ``mqtt://HOST[:PORT]``, or ``mqtts://`` for TLS; the nodes of a cluster are separated by commas.
    :ivar username: the user name; None for anonymous access.
    :ivar password_file: a file whose first line is the password; None to read the environment's ``UMQTT_PASSWORD``.
    :ivar ca: PEM file of the authority that signed the broker's certificate; None to use those this machine trusts.
    :ivar cert: PEM file of this collector's certificate; None for none.
    :ivar key: PEM file of the certificate's private key.
    :ivar alpn: the protocols to offer on port 443, which is a web server's too.
    """

    url: str
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    alpn: tuple[str, ...] = ()

    def check(self) -> None:
        """Check the settings.

        :raises UsageError: settings contradict each other, or a file cannot be used.
        """
        scheme, _nodes = parse_nodes(self.url)
        if (self.cert is None) != (self.key is None):
            raise UsageError("a client certificate needs its key: give cert and key, or neither")
        if scheme == "mqtt" and (self.ca or self.cert):
            raise UsageError(f"{self.url} is without TLS, but ca or cert was given: use mqtts://, or leave them out")
        if self.username is None and self.password_file is not None:
            raise UsageError("a password needs a user name: give username too")
        if self.username is not None:
            try:
                check_utf8(self.username, "username")
            except InvalidArgument as error:
                raise UsageError("the user name is longer than MQTT allows, or no text") from error
        self.password()
        self.tls()

    def password(self) -> bytes | None:
        """Read the password; None without a user name.

        :raises UsageError: there is no password, its file cannot be read, or it is too long for MQTT.
        """
        if self.username is None:
            return None
        if self.password_file is None:
            password = os.environb.get(b"UMQTT_PASSWORD")
            if password is None:
                raise UsageError(f"there is no password for {self.username}: give password_file, or set UMQTT_PASSWORD")
        else:
            try:
                password = self.password_file.read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
            except OSError as error:
                raise UsageError(f"cannot read the password file {self.password_file}: {_why(error)}") from error
        if len(password) > _LONGEST_FIELD:
            raise UsageError(f"the password for {self.username} is longer than the {_LONGEST_FIELD} bytes of MQTT")
        return password

    def tls(self) -> ssl.SSLContext | None:
        """Make a TLS context that verifies the broker's certificate and host name; None for ``mqtt://``.

        :raises UsageError: a certificate file cannot be used.
        """
        scheme, nodes = parse_nodes(self.url)
        if scheme != "mqtts":
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"cannot use the CA file {self.ca}: {_why(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.alpn and any(port == 443 for _, port in nodes):
            context.set_alpn_protocols(list(self.alpn))
        if self.cert is not None:
            try:
                # Without a password callback, OpenSSL would ask on the terminal for the password of an encrypted key.
                context.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"cannot use the certificate {self.cert} with {self.key}: {_why(error)}") from error
        return context


def parse_broker(url: str) -> tuple[str, str, int]:
    """Parse ``mqtt://HOST[:PORT]`` or ``mqtts://HOST[:PORT]`` into (scheme, host, port).

    :raises UsageError: the URL has another scheme, no host, a bad port or a path, or it holds credentials (other
        users of the machine could read them in the process list).
    """
    if "@" in url:
        # The message does not repeat the URL, which may hold a password.
        raise UsageError("broker must not hold credentials, which others can read there: give a user name and a file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"broker {url}: {error}; give mqtt://HOST:PORT") from error
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or not is_host(host) or parts.path not in ("", "/") or parts.query or port == 0:
        raise UsageError(f"broker {url} is not a broker's address; give mqtt://HOST:PORT or mqtts://HOST:PORT")
    return parts.scheme, host, port or _PORTS[parts.scheme]


def parse_nodes(urls: str) -> tuple[str, list[tuple[str, int]]]:
    """Parse the comma-separated URLs of one broker's nodes into (scheme, list of (host, port)).

    :raises UsageError: as :func:`parse_broker`; or a node is named twice; or only some nodes use TLS: an attacker who
        blocks those would get the password and the messages unencrypted.
    """
    nodes = [parse_broker(url.strip()) for url in urls.split(",")]
    if len({scheme for scheme, _, _ in nodes}) > 1:
        raise UsageError(f"broker {urls} mixes mqtt and mqtts: give all nodes with TLS, or none")
    if len(set(nodes)) < len(nodes):
        raise UsageError(f"broker {urls} names a node twice: give each once")
    return nodes[0][0], [(host, port) for _, host, port in nodes]


def _why(error: OSError) -> str:
    return error.strerror or str(error)
