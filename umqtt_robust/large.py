"""Hands over an inbound PUBLISH larger than the receive buffer in pieces, or skips it; then acknowledges it.

A skipped message is acknowledged too: otherwise it would come back at every reconnect. Only if there is no room to
handle it now, it is left unacknowledged, to come again on the next link (backpressure.py).
"""

from ._platform import const, print_exception
from .base_errors import MQTTError, ProtocolError
from .packets import DUP, PUBACK, QOS, QOS_2, RETAIN, decode_length

_SHOWN = const(64)  # bytes kept of a topic name for which there is no memory
_MOST_PROPERTIES = const(65535)  # bytes


class MessageTooLarge(MQTTError):
    """An inbound message was skipped. args[0]: its topic name, or the beginning of it; args[1]: bytes of payload."""


def put_together(inbox, topic, offset, size, chunk):
    """Takes a piece of a message for an Inbox, which gets the whole message with the last one."""
    inbox.packet_id = 0
    inbox.flags &= RETAIN
    try:
        if not offset:
            inbox._large = bytearray(size)
        if inbox._large is not None:
            end = offset + len(chunk)
            inbox._large[offset:end] = chunk
            if end == size:
                inbox._arrived(topic, bytes(inbox._large))
                inbox._large = None
    except MemoryError:
        inbox._large = None
        inbox.too_large += 1
        inbox._arrived(topic, b"")
        inbox.inbox[-1].append(MessageTooLarge(topic, size))


class LargeMessages:
    """Receives the large messages of one session, one at a time."""

    def __init__(self, session):
        self._session = session

    def forget(self, session):
        """Drops the message of a link that is gone."""
        self._topic = self._handler = None

    def pump(self):
        return True

    def begin(self, head, length):
        """Begins a PUBLISH and returns self. length: its remaining length, for feed(). Raises ProtocolError."""
        self._head = head
        self._left = length
        self._topic = bytearray()
        self._topic_left = -2  # below 0: bytes of the topic's length that are missing
        self._topic_length = 0
        self._whole = True  # there is memory for topic name and properties
        self._id_left = 2 if head & QOS else 0
        self._packet_id = 0
        self._properties = bytearray()
        self._properties_left = -1 if self._session.mqtt5 else 0  # -1: their length is missing
        self._offset = -1  # in the payload; -1: it has not begun
        self._size = 0
        self._handler = None
        self._skipped = False
        if length < 2 + self._id_left or head & QOS == QOS:
            raise ProtocolError("malformed PUBLISH")
        return self

    def feed(self, buf, i, n):
        """Takes bytes from buf[i:n], which is not empty. Returns the index of the first one left. Raises LinkLost."""
        # No acknowledgement can arrive before its end.
        session = self._session
        session.restart_ack_timer()
        session.ping = 0
        k = 1
        if self._topic_left < 0:
            self._topic_length = self._topic_length << 8 | buf[i]
            self._topic_left += 1
            if not self._topic_left:
                self._topic_left = self._topic_length
                if self._topic_length + self._id_left >= self._left:
                    raise ProtocolError("malformed PUBLISH")
        elif self._topic_left:
            k = min(n - i, self._topic_left)
            self._topic_left -= k
            try:
                if self._whole:
                    self._topic += buf[i : i + k]
            except MemoryError:
                self._whole = False
        elif self._id_left:
            self._packet_id = self._packet_id << 8 | buf[i]
            self._id_left -= 1
        elif self._properties_left:
            k = self._feed_properties(buf, i, n)
        else:
            if self._offset < 0:
                self._begin_payload()
            k = min(n - i, self._left)
            self._hand_over(memoryview(buf)[i : i + k])
            self._offset += k
        self._left -= k
        if not self._left:
            if self._offset < 0:  # the payload is empty
                self._begin_payload()
                self._hand_over(memoryview(buf)[:0])
            self._end()
        return i + k

    def _feed_properties(self, buf, i, n):
        if self._properties_left < 0:
            self._properties.append(buf[i])
            got = decode_length(self._properties, 0, len(self._properties))
            if got:
                self._properties_left = got[0]
                self._whole = self._whole and got[0] <= _MOST_PROPERTIES
                if got[0] >= self._left:
                    raise ProtocolError("malformed PUBLISH")
            return 1
        k = min(n - i, self._properties_left)
        self._properties_left -= k
        try:
            if self._whole:
                self._properties += buf[i : i + k]
        except MemoryError:
            self._whole = False
        return k

    def _begin_payload(self):
        session = self._session
        head = self._head
        if self._properties_left or head & QOS and not self._packet_id:
            raise ProtocolError("malformed PUBLISH")
        if self._whole and session.mqtt5:
            properties = self._properties
            self._topic = session.mqtt5.read_properties(bytes(self._topic), properties, 0, len(properties))[0]
        self._offset = 0
        self._size = self._left
        try:
            self._topic = bytes(self._topic)
        except MemoryError:
            self._whole = False
        if not self._whole:  # no memory for the topic name: its beginning is enough to report it
            self._topic = bytes(self._topic[:_SHOWN])
        if self._whole and not session.check_inbound(self._topic) and session.part("malformed").drops(self._topic):
            return
        if head & (DUP | QOS) == DUP | QOS_2 and session.part("qos2").knows(self._packet_id):
            return  # the same message again
        if head & QOS_2 and session.part("qos2").failed_at is not None:
            self._skipped = True
            return
        if session.pending > session.handover_limit or head & QOS_2 and not session.part("qos2").has_room():
            # It cannot wait: see backpressure.py.
            self._skipped = session.part("backpressure").leaves(head, 0)
            if self._skipped:
                return
        session.describe(head, self._packet_id, head & DUP > 0)
        self._handler = session.on_large if self._whole else None
        if not self._handler:
            session.too_large += 1
            session.report(MessageTooLarge(self._topic, self._size))

    def _hand_over(self, chunk):
        if self._handler:
            try:
                self._handler(self._topic, self._offset, self._size, chunk)
            except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                self._handler = None
                print_exception(error)
                self._session.dead_letters += 1
                if self._session.on_dead_letter:
                    self._session.on_dead_letter(self._topic, None, error)

    def _end(self):
        session = self._session
        session.large = None
        if self._skipped:
            return
        if self._head & QOS_2:
            session.part("qos2").handle_large(self._head, self._packet_id)
        elif self._head & QOS:
            if session.manual_ack:
                session.part("manual_ack").hold(self._packet_id)
                session.acknowledge(self._packet_id)
            else:
                session.out.put_ack(PUBACK, self._packet_id)


part = LargeMessages  # what Session.part() makes
