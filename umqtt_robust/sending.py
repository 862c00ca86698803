"""What waits to be sent: one fixed buffer, so that packets leave in one write each and none allocates."""

from ._platform import const
from .packets import packet, string

# PUBLISH leaves this much of the buffer to acknowledgements and PINGREQ.
_RESERVE = const(16)


class SendBuffer:
    """_bytes[_start:end] waits. A payload too large for it is written from where it lies, when _start is _cut."""

    def __init__(self, size):
        self._bytes = bytearray(size)
        self.now = 0  # ms, of the last tick
        self.open(None)

    def open(self, write):
        """A new link. write(buf, offset, size) returns how many bytes it took, 0 or None: none now; raises OSError."""
        self._write = write
        self._body = None
        self._start = self.end = self._cut = self._body_at = 0
        self.written_at = self.now

    def put_publish(self, head, topic, packet_id, payload):
        """Puts a PUBLISH (3.3); False when there is no room for it now. packet_id 0: none."""
        tx = self._bytes
        i = self.end
        j = len(topic)
        k = len(payload)
        length = j + k + (4 if packet_id else 2)
        room = len(tx) - i - j - 9 - _RESERVE
        if room < k and (self._body is not None or room < 0):
            if i or self._body is not None:
                return False
            # Not even the topic fits.
            body = string(topic)
            if packet_id:
                body += bytes((packet_id >> 8, packet_id & 255))
            return self.put(packet(head, body + payload))
        tx[i] = head
        i += 1
        while length > 127:
            tx[i] = length & 127 | 128
            length >>= 7
            i += 1
        tx[i] = length
        tx[i + 1] = j >> 8
        tx[i + 2] = j & 255
        i += 3
        j += i
        tx[i:j] = topic
        if packet_id:
            tx[j] = packet_id >> 8
            tx[j + 1] = packet_id & 255
            j += 2
        if room < k:
            self.end = self._cut = j
            self._body = payload
        else:
            self.end = k = j + k
            tx[j:k] = payload
        return True

    def put(self, whole):
        """Puts a whole packet, beside the buffer when it is too large for it; False when there is no room now."""
        i = self.end
        j = i + len(whole)
        if j + _RESERVE <= len(self._bytes):
            self._bytes[i:j] = whole
            self.end = j
        elif i or self._body is not None:
            return False
        else:
            self._cut = 0
            self._body = whole
        return True

    def has_room(self):
        """True when an acknowledgement or PINGREQ fits."""
        return self.end + 4 <= len(self._bytes)

    def put_ack(self, head, packet_id):
        """Puts PUBACK, PUBREC, PUBREL or PUBCOMP; only where has_room()."""
        tx = self._bytes
        i = self.end
        tx[i] = head
        tx[i + 1] = 2
        tx[i + 2] = packet_id >> 8
        tx[i + 3] = packet_id & 255
        self.end = i + 4

    def flush(self):
        """Writes what waits; True when nothing is left. Raises what write() raises."""
        while True:
            body = self._body
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
                    self._body = None
                    self._body_at = 0
            else:
                self._start = self.end = 0
                return True
            # The time of the last tick is never later than that of the write, so a PINGREQ is never late.
            self.written_at = self.now

    def waits(self):
        """True while bytes wait for the link to take them."""
        return self.end > 0 or self._body is not None

    def put_ping(self):
        """Puts PINGREQ; only where has_room()."""
        self._bytes[self.end] = 0xC0
        self._bytes[self.end + 1] = 0
        self.end += 2
