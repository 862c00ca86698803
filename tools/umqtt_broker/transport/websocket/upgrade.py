"""The HTTP request that becomes a WebSocket (RFC 6455, section 4.2). No I/O."""

import base64
import hashlib
from collections.abc import Collection
from urllib.parse import urlsplit

from ...errors import BrokerError
from ...settings.broker import is_loopback_name

# Bytes that a request with its headers may have. Browsers send cookies; 8 KiB is the usual limit of web servers.
MAX_REQUEST = 8192

_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# MQTT 3.1.1 asks for "mqtt" [MQTT-6.0.0-4]; clients of MQTT 3.1 said "mqttv3.1".
_SUBPROTOCOLS = ("mqtt", "mqttv3.1")
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


class UpgradeRefused(BrokerError):
    """A request that does not become a WebSocket. `answer` (bytes) is the HTTP response to send."""

    def __init__(self, status: int, text: str, headers: str = "") -> None:
        super().__init__(text)
        self.status = status
        body = f"{text}\n"
        self.answer = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body.encode())}\r\nConnection: close\r\n{headers}\r\n{body}"
        ).encode()


def answer_upgrade(request: bytes, origins: Collection[str], is_local: bool) -> bytes:
    """Return the response that opens the WebSocket. Raises UpgradeRefused.

    request: up to and including the empty line. origins: the sites whose pages may connect. If it is empty, all pages
    may; but on a listener that only this machine reaches (is_local), only pages of this machine: otherwise any page
    that its user opens could talk to a broker that trusts everyone on loopback.
    """
    try:
        lines = request[:-4].decode("latin-1").split("\r\n")
        method, _, version = lines[0].split(" ")
    except ValueError:
        raise UpgradeRefused(400, "not an HTTP request") from None
    headers: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise UpgradeRefused(400, "malformed header")
        headers.setdefault(name.lower(), []).append(value.strip())
    if method != "GET":
        raise UpgradeRefused(405, "only GET opens a WebSocket", "Allow: GET\r\n")
    if version != "HTTP/1.1" or len(headers.get("host", ())) != 1:
        raise UpgradeRefused(400, "HTTP/1.1 with one Host header is needed")
    if "websocket" not in _tokens(headers, "upgrade") or "upgrade" not in _tokens(headers, "connection"):
        raise UpgradeRefused(426, "this port speaks MQTT over WebSocket", "Upgrade: websocket\r\n")
    if headers.get("sec-websocket-version") != ["13"]:
        raise UpgradeRefused(426, "WebSocket version 13 is needed", "Sec-WebSocket-Version: 13\r\n")
    accept = _accept(headers.get("sec-websocket-key", []))
    offered = _tokens(headers, "sec-websocket-protocol")
    subprotocol = next((known for known in _SUBPROTOCOLS if known in offered), None)
    if subprotocol is None:
        raise UpgradeRefused(400, "the subprotocol mqtt must be offered")  # [MQTT-6.0.0-3]
    _check_origin(headers.get("origin", []), origins, is_local)
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    ).encode()


def _tokens(headers: dict[str, list[str]], name: str) -> list[str]:
    """Return the items of a header that is a comma-separated list, in lower case."""
    return [token.strip().lower() for value in headers.get(name, ()) for token in value.split(",")]


def _accept(keys: list[str]) -> str:
    try:
        is_key = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16
    except ValueError:  # binascii.Error, or not ASCII
        is_key = False
    if not is_key:
        raise UpgradeRefused(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    digest = hashlib.sha1(keys[0].encode() + _KEY_SUFFIX, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _check_origin(found: list[str], origins: Collection[str], is_local: bool) -> None:
    """Raise UpgradeRefused for a page of another site. Programs other than browsers send no Origin."""
    if not found:
        return
    origin = found[0].lower()
    allowed = origin in origins if origins else not is_local or _is_local_origin(origin)
    if len(found) != 1 or not allowed:
        raise UpgradeRefused(403, "pages of this origin may not connect: see websockets_origin")


def _is_local_origin(origin: str) -> bool:
    try:
        return is_loopback_name(urlsplit(origin).hostname or "")
    except ValueError:
        return False
