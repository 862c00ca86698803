"""How spools are served over TCP: the bytes on the wire, shared by ``remote`` (client) and the collector's server.

::

    server → client   GREETING   "MQSV", version, 32 random bytes
    client → server   HELLO      "MQSV", version, 32 random bytes, proof
    server → client   WELCOME    one byte: 0 and a proof, 1 wrong token, 2 another version, 3 too many clients

A proof is HMAC-SHA256(token, role + both random parts): each side shows that it knows the token, and the token
itself never travels. Then the client asks and the server answers, one at a time, in frames ::

    length of the body (4 bytes), CRC-32 of kind and body (4 bytes), kind (1 byte), body

of the kinds below. Requests are JSON: ``{"do": "names"}``, or durable, runs, retired, segments, length, read,
headers, remove with ``name`` and what :class:`View`'s method of that name takes. Integers are big-endian. What travels
is checked, not encrypted: on a network that others can read, let a tunnel (WireGuard, ssh, stunnel) carry it.
"""

import hmac
import json
import socket
import struct
import time
import zlib
from pathlib import Path

from ..errors import UsageError

VERSION = 3
MAGIC = b"MQSV"
NONCE_BYTES = 32
GREETING = struct.Struct(f">4sB{NONCE_BYTES}s")
HELLO = struct.Struct(f">4sB{NONCE_BYTES}s32s")
WELCOME = struct.Struct(">B32s")
ACCEPTED, WRONG_TOKEN, WRONG_VERSION, TOO_MANY = range(4)

REQUEST, ANSWER, BYTES, FAILURE = b"Q", b"J", b"B", b"E"
"""Kinds of frames: a request; an answer as JSON; one in bytes; an error as JSON (``error``, ``message``)."""

LONGEST_REQUEST = 4096
LONGEST_ANSWER = 16 << 20
"""Bytes of one answer: longer reads are asked for in several requests."""

HEADER = struct.Struct(">QQIIQ")
"""One block header in the answer to ``headers``: start, end, messages, crc32, received_ms."""

_FRAME = struct.Struct(">IIc")
_SHORTEST_TOKEN = 16


class BadFrame(Exception):
    """What arrived is not a frame, or not what was sent; the connection cannot be used any further."""


def read_token(path: Path) -> bytes:
    """The first line of a token file.

    :raises UsageError: it cannot be read, or the token is shorter than 16 characters.
    """
    try:
        first = path.read_bytes().split(b"\n", 1)[0].strip()
    except OSError as error:
        raise UsageError(f"cannot read the token file {path}: {error.strerror or error}") from error
    if len(first) < _SHORTEST_TOKEN:
        raise UsageError(
            f"the token in {path} is shorter than {_SHORTEST_TOKEN} characters: "
            "make one with `openssl rand -hex 32` and give both sides the same"
        )
    return first


def proof(token: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What `role` (``b"server"`` or ``b"client"``) sends to show that it knows `token`."""
    return hmac.digest(token, role + server_nonce + client_nonce, "sha256")


def receive_exactly(link: socket.socket, size: int, *, until: float | None = None) -> bytes:
    """`size` bytes.

    :param until: when all of them must have come, by ``time.monotonic()``; else each may take the link's timeout.
    :raises BadFrame: the peer closed the connection in the middle of them.
    :raises EOFError: it closed before the first.
    :raises OSError: the connection broke, or its timeout passed.
    """
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        if until is not None:
            link.settimeout(max(0.001, until - time.monotonic()))
        count = link.recv_into(view[got:])
        if not count:
            if got:
                raise BadFrame(f"it ended after {got} of {size} bytes")
            raise EOFError
        got += count
    return bytes(data)


def send_frame(link: socket.socket, kind: bytes, body: bytes) -> None:
    """Send one frame. :raises OSError: the connection broke."""
    link.sendall(_FRAME.pack(len(body), zlib.crc32(body, zlib.crc32(kind)), kind) + body)


def send_json(link: socket.socket, kind: bytes, content: object) -> None:
    """Send one frame of JSON. :raises OSError: the connection broke."""
    send_frame(link, kind, json.dumps(content, separators=(",", ":")).encode())


def receive_frame(link: socket.socket, longest: int) -> tuple[bytes, bytes]:
    """(kind, body) of the next frame.

    :raises BadFrame: it is longer than `longest`, cut short, or fails its checksum.
    :raises EOFError: the peer closed the connection between two frames.
    :raises OSError: the connection broke.
    """
    length, crc32, kind = _FRAME.unpack(receive_exactly(link, _FRAME.size))
    if length > longest:
        raise BadFrame(f"it announces {length} bytes")
    try:
        body = receive_exactly(link, length)
    except EOFError:
        raise BadFrame(f"it ended after 0 of {length} bytes") from None
    if zlib.crc32(body, zlib.crc32(kind)) != crc32:
        raise BadFrame("its checksum does not match")
    return kind, body
