"""What waits to be sent: one fixed buffer, so that a packet leaves in one write and none allocates."""

from ._platform import const
from .packets import string

# Other packets leave this much of the buffer to acknowledgements and PINGREQ.
_RESERVE = const(16)
_FIXED_HEADER = const(5)  # bytes at most: 2.2
_LEAST = const(32)  # bytes of the buffer, so that the beginning of every packet fits


class SendBuffer:
    """_bytes[_start:end] waits; nothing does while `end` is 0.

    A payload too large for it is written uncopied, after the bytes up to _cut.
    """

    def __init__(self, size):
        self._bytes = bytearray(max(size, _LEAST))
        self.now = 0  # ms, of the last tick
        self.open(None)

    def open(self, write):
        """A new link. write(buf, offset, size) returns how many bytes it took, 0 or None: none now; raises OSError."""
        self._write = write
        self.body = None
        self._start = self.end = self._cut = self._body_at = 0
        self.written_at = self.now

    def put(self, head, payload, topic=b"", packet_id=0, properties=b""):
        """Puts a packet; False when there is no room for it now.

        head: its first byte. payload: all that comes after the fixed header (2.2), or with `topic` what comes after
        the topic name and, unless it is 0, the packet id: then it is a PUBLISH (3.3). properties: of a PUBLISH of
        MQTT 5, before the payload; there the topic name may be empty.
        """
        tx = self._bytes
        i = self.end
        k = len(payload)
        j = len(topic) + (4 if packet_id else 2) + len(properties) if topic or properties else 0
        n = k + j
        room = len(tx) - i - j - _FIXED_HEADER - _RESERVE
        if room < k and (room < 0 or self.body is not None):
            if i or self.body is not None or not j:
                return False
            # Not even the topic fits.
            topic = string(topic) + bytes((packet_id >> 8, packet_id & 255)) if packet_id else string(topic)
            return self.put(head, topic + properties + payload)
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
        """True when an acknowledgement or PINGREQ fits."""
        return self.end + 4 <= len(self._bytes)

    def put_ack(self, head, packet_id=None):
        """Puts PUBACK, PUBREC, PUBREL or PUBCOMP, or without packet_id PINGREQ; only where has_room()."""
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
        """Writes what waits; True when nothing is left. Raises what write() raises."""
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
