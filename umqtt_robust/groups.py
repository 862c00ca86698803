"""Groups of received messages, and how they are found in the bytes that were read; for bulk.py."""

from .base_errors import ProtocolError
from .packets import decode_length

_PUBACK_HEAD = b"\x40\x02"
_PUBREC_HEAD = b"\x50\x02"


class Group:
    """Messages that were received together.

    :ivar packets: their PUBLISH packets, one after the other in the order of arrival (bytes)
    :ivar level: the protocol level of `packets`: 5 if a message has properties, else 4, also where they came by MQTT 5
    :ivar count: how many they are
    :ivar redelivered: how many of them have DUP set
    """

    def __init__(self, link):
        self.link = link
        self.packets = self.acks = b""
        self.level = 4
        self.count = self.redelivered = self.size = 0
        self._pieces = []  # of the packets as they came
        self._stripped = []  # the same without their empty properties

    def add(self, found, data, level):
        """Adds the messages that scan() has found in `data`."""
        consumed, count, redelivered, acks, stripped = found
        self._pieces.append(data[:consumed])
        if level == 5:
            self._stripped.append(stripped)
        self.acks += acks
        self.count += count
        self.redelivered += redelivered
        self.size += consumed

    def close(self):
        """Puts the packets together and returns self."""
        if None in self._stripped:
            self.level = 5
        self.packets = b"".join(self._pieces if self.level == 5 else self._stripped or self._pieces)
        self._pieces = self._stripped = None
        return self


def scan(data, level):
    """Finds the complete PUBLISH packets at the front of `data` (bytes), up to any other packet.

    Returns (bytes that they take, how many they are, how many have DUP set, the packets that acknowledge them, packets
    without properties). The last is None where level is 4, or a message has properties: a PUBLISH of MQTT 5 without
    them differs from one of MQTT 3.1.1 by one byte. Raises ProtocolError if the first packet is malformed; a later one
    is left for the next call.

    What does not disturb the stream is accepted, because a message that ends the link would come again on the next:
    QoS 2 on a subscription at QoS 1, wildcards in a topic, properties that are malformed within their length.
    """
    offset = count = redelivered = 0
    size = len(data)
    packet_ids = []
    acks = b""
    stripped = [] if level == 5 else None
    try:
        while offset + 2 <= size:
            first = data[offset]
            if first & 0xF0 != 0x30:  # PUBLISH; here a name would take longer
                break
            length = data[offset + 1]
            body = offset + 2
            if length & 128:
                # Two bytes are the usual length of telemetry, so they are decoded without a call.
                if body < size and data[body] < 128:
                    length = length & 127 | data[body] << 7
                    body += 1
                else:
                    got = decode_length(data, offset + 1, size)
                    if got is None:
                        break
                    length, body = got
            end = body + length
            if end > size:
                break
            at = body + 2 + (data[body] << 8 | data[body + 1]) if length >= 2 else end + 1
            qos = first & 6
            if qos:
                packet_id = data[at : at + 2]
                at += 2
                if packet_id == b"\0\0" or qos == 6:
                    at = end + 1  # malformed
            if level == 5 and at <= end:
                if at < end and not data[at]:
                    if stripped is not None:
                        stripped += data[offset : offset + 1], _variable(length - 1), data[body:at], data[at + 1 : end]
                else:
                    got = decode_length(data, at, end)
                    at = got[0] + got[1] if got else end + 1
                    stripped = None
            if at > end:
                raise ProtocolError("malformed PUBLISH")
            if qos == 2:
                packet_ids.append(packet_id)
                if first & 8:
                    redelivered += 1
            elif qos:
                acks += _join(packet_ids) + _PUBREC_HEAD + packet_id
                packet_ids = []
                redelivered += first >> 3 & 1
            count += 1
            offset = end
    except ProtocolError:
        if not count:
            raise
    return offset, count, redelivered, acks + _join(packet_ids), stripped and b"".join(stripped)


def _join(packet_ids):
    return _PUBACK_HEAD + _PUBACK_HEAD.join(packet_ids) if packet_ids else b""


def _variable(n):
    # Most packets are this short.
    return _SHORT[n] if n < 128 else bytes((n & 127 | 128, n >> 7)) if n < 16384 else _long(n)


_SHORT = [bytes((n,)) for n in range(128)]


def _long(n):
    from .mqtt5 import variable

    return variable(n)
