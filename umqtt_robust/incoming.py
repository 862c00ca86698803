"""What arrives: whole packets out of a buffer, to the handlers of the program and to the other half of the session."""

from ._platform import const, print_exception
from .base_errors import OutboxFull, ProtocolError
from .parts import load
from .states import AWAIT_PUBACK, CLOSED, LINK, UP

_CONNACK = const(0x20)
_PUBLISH = const(0x30)
_PUBACK = const(0x40)
_PUBREL = const(0x60)
_SUBACK = const(0x90)
_UNSUBACK = const(0xB0)
_PINGRESP = const(0xD0)
_DUP = const(0x08)
_BLOCKED = const(-2)


def is_plain(text):
    """True when the bytes are neither empty nor more than printable ASCII without wildcards."""
    for byte in text:
        if not 31 < byte < 127 or byte == 35 or byte == 43:  # "#", "+"
            return False
    return text != b""


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
    return None


class Incoming:
    """The receiving half of Session."""

    def receive(self, buf, n):
        """Takes the whole packets from buf[:n] and returns how many bytes that was; the caller keeps the rest.

        It stops early when the send buffer has no room for an acknowledgement. Raises ProtocolError.
        """
        if n > self._left:  # not the same bytes again
            self._heard_at = self.now
        i = 0
        acked = False
        while n - i > 1 or self.large and i < n:
            if self.large:
                if not self.out.has_room():
                    break
                i = self.large.feed(buf, i, n)
                continue
            length = buf[i + 1]
            j = i + 2
            if length > 127:
                got = decode_length(buf, i + 1, n)
                if got is None:
                    break
                length, j = got
            end = j + length
            head = buf[i]
            kind = head & 0xF0
            if end > n:
                if end - i <= len(buf):
                    break
                if self.state != UP or kind != _PUBLISH:
                    raise ProtocolError("packet larger than rx_size")
                self.large = self.part("large").begin(head, length)
                i = j
                continue
            if self.state == UP and kind == _PUBLISH:
                if not self._receive_publish(head, buf, j, end):
                    break
            elif head == _PUBACK and self.state == UP and length == 2:
                acked = True
                self._receive_puback(buf[j] << 8 | buf[j + 1])
            elif not self._receive_other(head, buf, j, length):
                break
            if self.state == CLOSED:  # a callback closed the link
                return n
            i = end
        self._left = n - i
        if acked:
            self._pump()
        elif self.out.end:
            self.out.flush()
        return i

    def _receive_publish(self, head, buf, j, end):
        qos = head & 6
        t = j + 2
        k = t + (buf[j] << 8 | buf[j + 1]) if t <= end else end + 1
        p = k + 2 if qos else k
        packet_id = 0
        if qos and p <= end:
            packet_id = buf[k] << 8 | buf[k + 1]
        # [MQTT-3.3.1-2], [MQTT-3.3.1-4], [MQTT-2.3.1-1]
        if p > end or qos == 6 or (not packet_id if qos else head & _DUP):
            raise ProtocolError("malformed PUBLISH")
        if qos and not self.out.has_room():
            return False
        if qos == 4:
            self.part("qos2").received(head, packet_id, bytes(buf[t:k]), bytes(buf[p:end]))
            return True
        if self.pending > self._room:
            self.part("holding").take(head, packet_id, bytes(buf[t:k]), bytes(buf[p:end]))
            return True
        self.describe(head, packet_id, head & _DUP > 0)
        if qos and self.manual_ack:
            self.part("manual").hold(packet_id)
        if self.on_raw:
            self.hand_over(self.on_raw, buf, t, k, p, end)
        else:
            view = self._view
            if view is None:
                view = self._view = memoryview(buf)
            if view[t:k] != self.seen:
                self.find_route(bytes(view[t:k]))
            self.deliver(self.seen, bytes(view[p:end]))
        if self._room == _BLOCKED:
            self.part("holding").put_back(head, packet_id, bytes(buf[t:k]), bytes(buf[p:end]))
        elif qos and self.state == UP and not self.manual_ack:
            self.out.put_ack(_PUBACK, packet_id)
        return True

    def check_inbound(self, topic):
        """Raises ProtocolError unless a PUBLISH may have that topic name [MQTT-3.3.2-2]."""
        if not is_plain(topic):
            load("topics").check_inbound(topic)

    def describe(self, flags, packet_id, redelivered):
        """A message is about to be handed over."""
        self.received += 1
        self.flags = flags
        self.packet_id = packet_id
        self.redelivered = redelivered

    def find_route(self, topic):
        """Which handlers take the messages of that topic."""
        self.check_inbound(topic)
        self._route = route = []
        for topic_filter, handler in self._handlers:
            if topic_filter == topic or self._matches and self._matches(topic_filter, topic):
                route.append(handler)
        self.seen = topic

    def deliver(self, topic, payload):
        """Hands a message to every handler whose filter selects it; find_route() has looked at its topic."""
        for handler in self._route or (self.on_message,):
            if handler:
                self.hand_over(handler, topic, payload)
            else:
                self.unhandled += 1

    def hand_over(self, handler, topic, payload, k=0, p=0, end=0):
        """Calls a handler; with `end` a raw one, which takes (topic, payload, k, p, end) as buffer and offsets."""
        # Acknowledgements leave in the order of arrival [MQTT-4.6.0-2], so a message that is put off would hold up
        # all others: a handler that raises is called again at once if it may be, and then the message is a dead letter.
        # Not so when it found no room in the outbox, where room will be: see holding.py.
        if self._room == _BLOCKED:  # another handler of the same message was
            return
        pending = self.pending
        for _ in range(1 + self.handler_retries):
            try:
                if end:
                    handler(topic, payload, k, p, end)
                else:
                    handler(topic, payload)
                if self.pending != pending and 2 * self.pending - pending > self.outbox.store.slots:
                    self.part("holding").learn(self.pending - pending)  # as many more would not fit
                return
            except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                failure = error
                self.redelivered = True
                if pending and isinstance(error, OutboxFull):
                    self.part("holding").block(self.pending - pending + 1)
                    return
                print_exception(error)
        self.dead_letters += 1
        if self.on_dead_letter:
            if end:
                topic, payload = bytes(topic[payload:k]), bytes(topic[p:end])
            self.on_dead_letter(topic, payload, failure)

    def _receive_puback(self, packet_id):
        outbox = self.outbox
        slot = outbox.slot_of.get(packet_id)
        if slot is None or not outbox.flags[slot] & _DUP:
            self.unexpected += 1  # of a message from before a session that was lost
        elif outbox.flags[slot] & 0x46 != AWAIT_PUBACK:
            self.part("qos2").acknowledged(_PUBACK, packet_id)  # by a broker that takes QoS 2 for QoS 1
        else:
            self.delivered(packet_id)

    def delivered(self, packet_id):
        """The broker has a message of ours."""
        self.remove(packet_id)
        if self.on_acknowledged:
            self.on_acknowledged(packet_id)

    def _receive_other(self, head, buf, j, length):
        # Any other packet; False when it must wait for room in the send buffer.
        kind = head & 0xF0
        # [MQTT-2.2.2-2] for the flags.
        if length << 2 | self.state != LINK[head >> 4] or head & 15 != (2 if kind == _PUBREL else 0):
            raise ProtocolError("malformed or unexpected packet %d" % (head >> 4))
        if kind == _PINGRESP:
            self._ping = 0
        elif kind == _CONNACK:
            if buf[j] > 1 or buf[j + 1] > 5 or buf[j] and buf[j + 1]:  # [MQTT-3.2.2-4]
                raise ProtocolError("malformed CONNACK")
            self.connected_as(buf[j], buf[j + 1])
        else:
            packet_id = buf[j] << 8 | buf[j + 1]
            if kind == _SUBACK or kind == _UNSUBACK:
                self._answered(packet_id, buf[j + 2] if kind == _SUBACK else 0)
            elif not self.out.has_room():
                return False
            else:
                self.part("qos2").acknowledged(kind, packet_id)
        return True
