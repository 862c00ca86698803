"""Control packets a client sends rarely, as bytes, and the checks of what a broker sends: MQTT 3.1.1, chapter 3.

PUBLISH and the acknowledgements are written straight into the session's buffer, in session.py.
"""

from .errors import ProtocolError


def _string(text):
    return bytes((len(text) >> 8, len(text) & 255)) + text


def packet(head, body):
    """A control packet: its first byte, the remaining length (2.2.3) and the rest."""
    n = len(body)
    length = b""
    while n > 127:
        length += bytes((n & 127 | 128,))
        n >>= 7
    return bytes((head,)) + length + bytes((n,)) + body


def connect(client_id, keep_alive, clean_session, will, username, password, level=4):
    """CONNECT (3.1). keep_alive: seconds. level: 4 for MQTT 3.1.1, 3 for MQTT 3.1."""
    flags = 2 if clean_session else 0
    payload = _string(client_id)
    if will:
        flags |= 4 | will.qos << 3 | (32 if will.retain else 0)
        payload += _string(will.topic) + _string(will.payload)
    if username is not None:
        flags |= 128
        payload += _string(username)
        if password is not None:  # never without a user name [MQTT-3.1.2-22]
            flags |= 64
            payload += _string(password)
    name = b"MQTT" if level == 4 else b"MQIsdp"
    return packet(0x10, _string(name) + bytes((level, flags, keep_alive >> 8, keep_alive & 255)) + payload)


def subscribe(packet_id, topic_filter, qos):
    """SUBSCRIBE (3.8) to one topic filter."""
    return packet(0x82, bytes((packet_id >> 8, packet_id & 255)) + _string(topic_filter) + bytes((qos,)))


def unsubscribe(packet_id, topic_filter):
    """UNSUBSCRIBE (3.10) from one topic filter."""
    return packet(0xA2, bytes((packet_id >> 8, packet_id & 255)) + _string(topic_filter))


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
            raise ProtocolError("remaining length has more than four bytes")
    return None


def check_inbound_topic(topic):
    """Raises ProtocolError unless `topic` may stand in a PUBLISH [MQTT-3.3.2-1, MQTT-3.3.2-2, MQTT-1.5.3-1, -2]."""
    try:
        str(topic, "utf-8")
    except UnicodeError:
        raise ProtocolError("topic name is not UTF-8")
    if not topic or b"+" in topic or b"#" in topic or b"\0" in topic:
        raise ProtocolError("topic name is empty or holds a wildcard or NUL")
