"""Control packets a client sends rarely, as bytes, and the remaining length: MQTT 3.1.1, chapters 2 and 3.

PUBLISH and the acknowledgements are written straight into the session's buffer, in session.py.
"""

from .errors import ProtocolError


def string(text):
    """A string with its length before it (1.5.3), or any binary field of CONNECT."""
    return bytes((len(text) >> 8, len(text) & 255)) + text


def packet(head, body):
    """A control packet: its first byte, the remaining length (2.2.3) and the rest."""
    n = len(body)
    length = b""
    while n > 127:
        length += bytes((n & 127 | 128,))
        n >>= 7
    return bytes((head,)) + length + bytes((n,)) + body


def connect(client_id, keep_alive, clean_session, will, username, password, level, purge):
    """CONNECT (3.1). keep_alive: seconds. level: 4 for MQTT 3.1.1, 3 for MQTT 3.1.

    will: None or a Will. purge: only to make the broker forget. The rest is bytes or None.
    """
    if purge:
        clean_session = True
        will = None
    flags = 2 if clean_session else 0
    body = string(client_id)
    if will:
        flags |= 4 | will.qos << 3 | (32 if will.retain else 0)
        body += string(will.topic) + string(will.payload)
    if username is not None:
        flags |= 128
        body += string(username)
        if password is not None:  # never without a user name [MQTT-3.1.2-22]
            flags |= 64
            body += string(password)
    name = b"\0\4MQTT" if level == 4 else b"\0\6MQIsdp"
    return packet(0x10, name + bytes((level, flags, keep_alive >> 8, keep_alive & 255)) + body)


def decode_length(buf, i, end):
    """Remaining length (2.2.3) that begins at buf[i]: (length, index of what follows), or None: more bytes are needed.

    Raises ProtocolError when it has more than four bytes.
    """
    length = shift = 0
    while i < end:
        byte = buf[i]
        i += 1
        length |= (byte & 127) << shift
        if byte < 128:
            return length, i
        shift += 7
        if shift > 21:
            raise ProtocolError("remaining length")
