"""What waits to be sent: one fixed buffer, so that packets leave in one write each and no packet allocates."""

from ._platform import const
from .packets import packet

# PUBLISH leaves this much of the buffer to acknowledgements and PINGREQ.
_RESERVE = const(16)


class SendBuffer:
    """_bytes[_start:end] wait. A payload too large for the buffer is written from where it lies, when _start is _cut."""

    def __init__(self, size):
        self._bytes = bytearray(size)
        self._size = size
        self.now = 0  # the time of the last tick
        self.open(None)

    def open(self, write):
        """write(buf, offset, size) returns how many bytes it took, 0 or None when it takes none now; raises OSError."""
        self._write = write
        self._start = self.end = self._cut = self._body_at = 0
        self._body = None
        self.written_at = self.now

    @property
    def waits(self):
        """True while bytes wait for the link to take them."""
        return self.end != self._start or self._body is not None

    def flush(self):
        """Writes what waits; True when nothing is left. Raises what write() raises."""
        write = self._write
        while True:
            body = self._body
            end = self.end if body is None else self._cut
            if self._start < end:
                n = write(self._bytes, self._start, end - self._start)
                if not n:
                    return False
                self._start += n
            elif body is not None:
                n = write(body, self._body_at, len(body) - self._body_at)
                if not n:
                    return False
                self._body_at += n
                if self._body_at == len(body):
                    self._body = None
            else:
                self._start = self.end = 0
                return True
            # The time of the last tick is never later than that of the write, so a PINGREQ is never late.
            self.written_at = self.now

    def put_publish(self, head, topic, packet_id, payload):
        """Puts a PUBLISH (3.3); False when there is no room for it now. packet_id 0: none."""
        buf = self._bytes
        i = self.end
        n_topic = len(topic)
        n_payload = len(payload)
        length = n_topic + n_payload + (4 if packet_id else 2)
        fits = i + length + 5 + _RESERVE <= self._size
        if not fits:
            if self._body is not None:
                return False
            if i + n_topic + 9 + _RESERVE > self._size:
                if i:
                    return False
                return self._put_whole(head, topic, packet_id, payload)
        buf[i] = head
        i += 1
        while length > 127:
            buf[i] = length & 127 | 128
            length >>= 7
            i += 1
        buf[i] = length
        buf[i + 1] = n_topic >> 8
        buf[i + 2] = n_topic & 255
        i += 3
        j = i + n_topic
        buf[i:j] = topic
        if packet_id:
            buf[j] = packet_id >> 8
            buf[j + 1] = packet_id & 255
            j += 2
        if fits:
            self.end = i = j + n_payload
            buf[j:i] = payload
        else:
            self.end = self._cut = j
            self._body = payload
            self._body_at = 0
        return True

    def _put_whole(self, head, topic, packet_id, payload):
        # Not even the topic name fits.
        body = bytes((len(topic) >> 8, len(topic) & 255)) + topic
        if packet_id:
            body += bytes((packet_id >> 8, packet_id & 255))
        return self.put(packet(head, body + payload))

    def put(self, whole):
        """Puts a whole packet, beside the buffer when it is too large for it; False when there is no room now."""
        i = self.end
        j = i + len(whole)
        if j + _RESERVE <= self._size:
            self._bytes[i:j] = whole
            self.end = j
            return True
        if i or self._body is not None:
            return False
        self._cut = self._body_at = 0
        self._body = whole
        return True

    def has_room_for_ack(self):
        return self.end + 4 <= self._size

    def put_ack(self, head, packet_id):
        """PUBACK, PUBREC, PUBREL or PUBCOMP; only where has_room_for_ack()."""
        buf = self._bytes
        i = self.end
        buf[i] = head
        buf[i + 1] = 2
        buf[i + 2] = packet_id >> 8
        buf[i + 3] = packet_id & 255
        self.end = i + 4

    def put_empty(self, head):
        """PINGREQ or DISCONNECT; False when there is no room now."""
        i = self.end
        if i + 2 > self._size:
            return False
        self._bytes[i] = head
        self._bytes[i + 1] = 0
        self.end = i + 2
        return True
