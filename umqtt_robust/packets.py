"""MQTT 3.1.1 on the wire (chapters 2 and 3): the first bytes of packets, every transition that they cause, as literal
tables, how they are encoded, and the send buffer. docs/states.md is drawn from the tables.

Session.receive() decodes what arrives. mqtt5.py encodes and decodes what MQTT 5 adds to the packets.
"""

from ._platform import const
from .base_errors import ProtocolError

# The first byte of a packet: its type, and the flags that it must have [MQTT-2.2.2-1]. PUBLISH has flags of its own.
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

# Flags of PUBLISH (3.3.1).
RETAIN = const(0x01)
QOS = const(0x06)
QOS_1 = const(0x02)
QOS_2 = const(0x04)
DUP = const(0x08)

# States are named after what they wait for, so the name says who moves next. What is in no table breaks the protocol
# [MQTT-4.8.0-1].

# The link: (state << 8 | first byte of the packet): next state. Of PUBLISH the first byte without its flags.
CLOSED = 0
AWAIT_CONNACK = 1
UP = 2

LINK = {
    AWAIT_CONNACK << 8 | CONNACK: UP,  # the first packet of a broker [MQTT-3.2.0-1]
    UP << 8 | PUBLISH: UP,
    UP << 8 | PUBACK: UP,
    UP << 8 | PUBREC: UP,
    UP << 8 | PUBREL: UP,
    UP << 8 | PUBCOMP: UP,
    UP << 8 | SUBACK: UP,
    UP << 8 | UNSUBACK: UP,
    UP << 8 | PINGRESP: UP,
}

# What MQTT 5 adds: the broker says why it closes the link.
LINK_5 = {UP << 8 | DISCONNECT: CLOSED}

# A message to the broker: (state << 8 | acknowledgement): next state. A state is the bits that STATE selects of
# the message's flags in the outbox and in the store: its QoS, and whether PUBREC came.
DONE = 0x00
AWAIT_PUBACK = 0x02
AWAIT_PUBREC = 0x04
AWAIT_PUBCOMP = 0x44
STATE = 0x46

OUTBOUND = {
    AWAIT_PUBACK << 8 | PUBACK: DONE,
    AWAIT_PUBREC << 8 | PUBACK: DONE,  # of a broker that takes QoS 2 for QoS 1
    AWAIT_PUBREC << 8 | PUBREC: AWAIT_PUBCOMP,
    AWAIT_PUBCOMP << 8 | PUBREC: AWAIT_PUBCOMP,  # PUBREC again: PUBREL again
    AWAIT_PUBCOMP << 8 | PUBCOMP: DONE,
}

# A message from the broker at QoS 2: (state << 8 | packet): next state. It is stored at PUBLISH, handed over at PUBREL.
UNKNOWN = 0
AWAIT_PUBREL = 1

INBOUND = {
    UNKNOWN << 8 | PUBLISH: AWAIT_PUBREL,
    AWAIT_PUBREL << 8 | PUBLISH: AWAIT_PUBREL,  # the same message again: PUBREC again
    AWAIT_PUBREL << 8 | PUBREL: UNKNOWN,
    UNKNOWN << 8 | PUBREL: UNKNOWN,  # PUBCOMP was lost: PUBCOMP again
}

# Inbound flow control (backpressure.py): values of Session.handover_limit that are no number of messages.
WAIT = -1  # new messages wait behind others
BLOCKED = -2  # a handler has just found the outbox full: its message is to be put back
SKIPPING = -3  # a message was left for the next link, so all that come after it are

# Keep-alive: values of Session.ping, 0 where nothing is awaited.
PING_DUE = 1
PING_SENT = 2  # awaits PINGRESP, or any other packet

# Other packets leave this many bytes of the send buffer to acknowledgements and PINGREQ.
RESERVE = const(16)
_FIXED_HEADER = const(5)  # bytes at most (2.2)
_LEAST = const(32)  # bytes of the send buffer, so that the beginning of every packet fits
_FRONT = const(256)  # bytes of the send buffer, see _front


def string(text):
    """Encodes a string, or a binary field of CONNECT, with its length before it (1.5.3)."""
    if isinstance(text, str):  # a user name or password that the program has set as an attribute
        text = text.encode()
    return bytes((len(text) >> 8, len(text) & 255)) + text


def connect(client_id, keep_alive, clean_session, will=None, username=None, password=None, level=4, properties=b"",
            will_properties=b""):  # fmt: skip
    """Encodes CONNECT (3.1) without its fixed header.

    keep_alive: seconds. will: what Will() returns, or None. level: 4 for MQTT 3.1.1, 3 for MQTT 3.1; a bridge sets its
    highest bit. properties, will_properties: of MQTT 5, with their length before them. The others are bytes, or None.
    """
    flags = 2 if clean_session else 0
    fields = properties + string(client_id)
    if will:
        flags |= will[0]
        fields += will_properties + will[1]
    if username is not None:
        flags |= 128
        fields += string(username)
        if password is not None:  # never without a user name [MQTT-3.1.2-22]
            flags |= 64
            fields += string(password)
    head = string(b"MQIsdp" if level & 127 == 3 else b"MQTT")
    return head + bytes((level, flags, keep_alive >> 8, keep_alive & 255)) + fields


def decode_length(buf, i, end):
    """Decodes the remaining length (2.2.3) at buf[i].

    Returns (length, index of the byte after it), or None if it is incomplete. Raises ProtocolError if it has more than
    four bytes.
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


class SendBuffer:
    """Holds what waits to be sent in one fixed buffer, so that a packet leaves in one write and none allocates.

    _bytes[_start:end] waits; nothing waits while `end` is 0. A payload too large for the buffer is `body`: it is
    written uncopied, after the bytes up to _cut.
    """

    def __init__(self, size):
        self._bytes = bytearray(max(size, _LEAST))
        # MicroPython moves all that is behind a slice that is assigned to, even if it stays where it is: in the whole
        # buffer, an RP2040 takes 0.08 ms for each.
        self._front = memoryview(self._bytes)[:_FRONT]
        self.now = 0  # ms, of the last tick
        self.open(None)

    def open(self, write):
        """Empties the buffer for a new link, or with None for no link.

        write(buf, offset, size) returns how many bytes it took, 0 or None if it takes none now; it raises OSError.
        """
        self._write = write
        self.body = None
        self._start = self.end = self._cut = self._body_at = 0
        self.written_at = self.now

    def put(self, head, payload, topic=b"", packet_id=0, properties=b""):
        """Encodes a packet into the buffer. Returns False if there is no room for it now.

        head: its first byte. payload: all that follows the fixed header (2.2). With `topic` the packet is a PUBLISH
        (3.3), and payload is what follows the topic name and the packet id, which is left out if it is 0. properties:
        of a PUBLISH of MQTT 5, before the payload; there the topic name may be empty.
        """
        tx = self._bytes
        i = self.end
        k = len(payload)
        j = len(topic) + (4 if packet_id else 2) + len(properties) if topic or properties else 0
        n = k + j
        room = len(tx) - i - j - _FIXED_HEADER - RESERVE
        if room < k and (room < 0 or self.body is not None):
            if i or self.body is not None or not j:
                return False
            # Not even the topic fits.
            topic = string(topic) + bytes((packet_id >> 8, packet_id & 255)) if packet_id else string(topic)
            return self.put(head, topic + properties + payload)
        if i + n < _FRONT - _FIXED_HEADER:
            tx = self._front
        tx[i] = head
        i += 1
        while n > 127:  # the remaining length: 2.2.3
            tx[i] = n & 127 | 128
            n >>= 7
            i += 1
        tx[i] = n
        i += 1
        if j:
            n = len(topic)
            tx[i] = n >> 8
            tx[i + 1] = n & 255
            i += 2
            n += i
            tx[i:n] = topic
            i = n
            if packet_id:
                tx[i] = packet_id >> 8
                tx[i + 1] = packet_id & 255
                i += 2
            if properties:
                n = i + len(properties)
                tx[i:n] = properties
                i = n
        if room < k:
            self.end = self._cut = i
            self.body = payload
        else:
            self.end = k = i + k
            tx[i:k] = payload
        return True

    def has_room(self):
        """Returns True if an acknowledgement or PINGREQ fits."""
        return self.end + 4 <= len(self._bytes)

    def put_ack(self, head, packet_id=None):
        """Encodes PUBACK, PUBREC, PUBREL or PUBCOMP, or without packet_id PINGREQ. Call it only if has_room()."""
        tx = self._bytes
        i = self.end
        tx[i] = head
        if packet_id is not None:
            tx[i + 1] = 2
            tx[i + 2] = packet_id >> 8
            tx[i + 3] = packet_id & 255
            self.end = i + 4
        else:
            tx[i + 1] = 0
            self.end = i + 2

    def flush(self):
        """Writes what waits. Returns True if nothing is left. Raises what write() raises."""
        while True:
            body = self.body
            start = self._start
            end = self.end if body is None else self._cut
            if start < end:
                n = self._write(self._bytes, start, end - start)
                if not n:
                    return False
                self._start = start + n
            elif body is not None:
                n = self._write(body, self._body_at, len(body) - self._body_at)
                if not n:
                    return False
                self._body_at += n
                if self._body_at == len(body):
                    self.body = None
                    self._body_at = 0
            else:
                self._start = self.end = 0
                return True
            # The time of the last tick is never later than that of the write, so a PINGREQ is never late.
            self.written_at = self.now
