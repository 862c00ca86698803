"""An inbound PUBLISH larger than the receive buffer: handed over in pieces, or skipped, but always acknowledged.

Left unacknowledged it would come back at every reconnect.
"""

from .errors import MessageTooLarge, ProtocolError
from .packets import check_inbound_topic


class LargeMessage:
    """Takes the bytes of one PUBLISH as they come, after its fixed header. length: its remaining length."""

    def __init__(self, session, head, length):
        self.ended = False
        self._session = session
        self._head = head
        self._left = length
        self._topic_left = -2  # below 0: bytes of the topic's length that are missing
        self._topic_length = 0
        self._topic = bytearray()
        self._id_left = 2 if head & 6 else 0
        self._packet_id = 0
        self._offset = -1  # into the payload; -1: not there yet
        self._size = 0
        self._handler = None
        if length < 2 + self._id_left or head & 6 == 6:
            raise ProtocolError("PUBLISH with a malformed fixed header")

    def feed(self, buf, i, n):
        """Takes what it needs from buf[i:n]; returns the index of what it left."""
        while i < n and not self.ended:
            if self._topic_left < 0:
                self._topic_length = self._topic_length << 8 | buf[i]
                self._topic_left += 1
                i = self._took(i, 1)
                if self._topic_left == 0:
                    self._topic_left = self._topic_length
                    if self._topic_length + self._id_left > self._left:
                        raise ProtocolError("PUBLISH ends inside its topic name or packet identifier")
            elif self._topic_left:
                k = min(n - i, self._topic_left)
                if len(self._topic) + k <= len(buf):
                    self._topic += buf[i : i + k]
                self._topic_left -= k
                i = self._took(i, k)
            elif self._id_left:
                self._packet_id = self._packet_id << 8 | buf[i]
                self._id_left -= 1
                i = self._took(i, 1)
            else:
                if self._offset < 0:
                    self._begin()
                k = min(n - i, self._left)
                self._hand_over(buf, i, k)
                i = self._took(i, k)
            if not self._left:
                self._end()
        return i

    def _took(self, i, k):
        self._left -= k
        return i + k

    def _begin(self):
        session = self._session
        self._offset = 0
        self._size = self._left
        if self._head & 6 and not self._packet_id:
            raise ProtocolError("PUBLISH with packet identifier 0")
        if len(self._topic) == self._topic_length:
            check_inbound_topic(bytes(self._topic))
        if self._head & 6 == 4 and session.qos2().knows(self._packet_id):
            return  # the same message again
        session.inbound.flags = self._head
        session.inbound.packet_id = self._packet_id
        self._handler = session.on_large
        if self._handler is None:
            session.too_large += 1
            if session.on_error:
                session.on_error(MessageTooLarge(bytes(self._topic), self._size))

    def _hand_over(self, buf, i, k):
        if self._handler:
            try:
                self._handler(bytes(self._topic), self._offset, self._size, memoryview(buf)[i : i + k])
            except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                self._handler = None
                self._session.inbound.dead_letters += 1
                if self._session.inbound.on_dead_letter:
                    self._session.inbound.on_dead_letter(bytes(self._topic), None, error)
        self._offset += k

    def _end(self):
        if self._offset < 0:
            self._begin()
        self.ended = True
        if self._head & 6 == 2:
            self._session.put_ack(0x40, self._packet_id)
        elif self._head & 6 == 4:
            self._session.qos2().received_large(self._head, self._packet_id)
