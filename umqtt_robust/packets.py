"""MQTT 3.1.1 on the wire: the first bytes of packets, and the packets that are made as bytes (chapters 2 and 3).

SendBuffer makes the others, without allocating; Session.receive() takes apart what comes. What MQTT 5 adds to the
packets is made and read in mqtt5.py.
"""

from ._platform import const
from .base_errors import ProtocolError

# The first byte: the type, and the flags that it must have [MQTT-2.2.2-1]; PUBLISH has flags of its own.
CONNECT = const(0x10)
CONNACK = const(0x20)
PUBLISH = const(0x30)
PUBACK = const(0x40)
PUBREC = const(0x50)
PUBREL = const(0x62)
PUBCOMP = const(0x70)
SUBSCRIBE = const(0x82)
SUBACK = const(0x90)
UNSUBSCRIBE = const(0xA2)
UNSUBACK = const(0xB0)
PINGREQ = const(0xC0)
PINGRESP = const(0xD0)
DISCONNECT = const(0xE0)
AUTH = const(0xF0)

# Flags of PUBLISH (3.3.1).
RETAIN = const(0x01)
QOS = const(0x06)
QOS_1 = const(0x02)
QOS_2 = const(0x04)
DUP = const(0x08)


def string(text):
    """A string with its length before it (1.5.3), or any binary field of CONNECT."""
    return bytes((len(text) >> 8, len(text) & 255)) + text


def connect(client_id, keep_alive, clean_session, will=None, username=None, password=None, level=4, properties=b"",
            will_properties=b""):  # fmt: skip
    """CONNECT (3.1) without its fixed header.

    keep_alive: seconds. will: what Will() returns, or None. level: 4 for MQTT 3.1.1, 3 for MQTT 3.1; a bridge sets its
    highest bit. properties, will_properties: of MQTT 5, with their length before them. The others are bytes, or None.
    """
    flags = 2 if clean_session else 0
    fields = properties + string(client_id)
    if will:
        topic, message, qos, retain = will[:4]
        flags |= 4 | qos << 3 | (32 if retain else 0)
        fields += will_properties + string(topic) + string(message)
    if username is not None:
        flags |= 128
        fields += string(username)
        if password is not None:  # never without a user name [MQTT-3.1.2-22]
            flags |= 64
            fields += string(password)
    head = string(b"MQIsdp" if level & 127 == 3 else b"MQTT")
    return head + bytes((level, flags, keep_alive >> 8, keep_alive & 255)) + fields


def decode_length(buf, i, end):
    """The remaining length (2.2.3) that begins at buf[i]: (length, index of what follows), or None: it is not whole.

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
    return None
