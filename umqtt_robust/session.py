"""The protocol of one client, without sockets: bytes in, calls out, bytes to a write function; time is an argument.

MQTT 3.1.1; what stands in brackets is the number of a normative statement. What few programs need lies in modules of
its own, loaded when it is first needed: see part().
"""

from ._platform import const, ticks_diff
from .errors import InvalidArgument, LinkLost, OutboxFull, ProtocolError, Refused
from .packets import decode_length, packet, string
from .sending import SendBuffer
from .states import AWAIT_CONNACK, CLOSED, LINK, OUTBOUND, UP
from .topics import check_topic_filter, check_topic_name, matches

_CONNACK = const(0x20)
_PUBLISH = const(0x30)
_PUBACK = const(0x40)
_PUBREL = const(0x60)
_SUBSCRIBE = const(0x82)
_SUBACK = const(0x90)
_UNSUBSCRIBE = const(0xA2)
_UNSUBACK = const(0xB0)
_PINGRESP = const(0xD0)
_DUP = const(0x08)
_UNREADABLE = const(2)  # policy.UNREADABLE
_NEVER = const(0x1FFFFFFF)
_TRIES = const(3)

# _filters[topic_filter] is its QoS and
_ASKED = const(0x10)
_GRANTED = const(0x30)
_LEAVING = const(0x40)


class Session:
    """One client's state, over any number of links. The public attributes are described in Client."""

    def __init__(self, outbox, keep_alive):
        """keep_alive: ms, 0: off."""
        self.state = CLOSED
        self.outbox = outbox
        self.pending = len(outbox.queue)
        self.now = 0  # ms, of the last tick
        self.sent = self.received = self.discarded = self.unhandled = self.dead_letters = self.unexpected = 0
        self.too_large = 0
        self.packet_id = self.flags = 0
        self.redelivered = False
        self._keep_alive = keep_alive
        self._parts = {}
        self._loaded = []  # the same, in a list: a handler may load another one while it is walked through
        self._wait = 0
        self._last_id = outbox.queue[-1] if outbox.queue else 0
        if outbox.lifetimes:
            self.part("policy")
        self._topic = self._topic_bytes = None  # the topic that publish() checked last
        self._handlers = []
        self._seen = self._route = None  # the topic that was received last, and its handlers
        self._filters = {}
        self._requests = {}  # packet id of an unanswered SUBSCRIBE or UNSUBSCRIBE: topic filter
        self._ask = False  # a SUBSCRIBE or UNSUBSCRIBE is to be sent
        self._view = None
        self.out = SendBuffer(self.tx_size)
        self.close()

    def part(self, name):
        """The Part of the module of that name: an optional part of the library.

        Raises InvalidArgument when it is not installed.
        """
        part = self._parts.get(name)
        if not part:
            try:
                module = __import__("umqtt_robust." + name, None, None, ("Part",))
            except ImportError:
                raise InvalidArgument("umqtt_robust.%s is not installed" % name)
            part = self._parts[name] = module.Part(self)
            self._loaded.append(part)
        return part

    def has_part(self, name):
        """True when part(name) was loaded."""
        return name in self._parts

    # The link

    def open(self, write, connect_packet):
        """A link is there: CONNECT goes first [MQTT-3.1.0-1].

        write: as SendBuffer.open() takes it.
        """
        self.state = AWAIT_CONNACK
        self.out.open(write)
        self._heard_at = self._look_at = self.now
        self.out.put(connect_packet)
        self.out.flush()

    def close(self):
        """The link is gone: what was not acknowledged goes again on the next one."""
        # A broker that took CONNECT may have begun a new session, even where its CONNACK was lost.
        unsure = self.state == AWAIT_CONNACK
        self.state = CLOSED
        self.large = self._broken = None
        self.out.open(None)
        self._left = 0  # bytes that receive() left with the caller
        self._ping = 0  # 1: PINGREQ is due, 2: it was sent
        self._forget(False, unsure)

    def _forget(self, session, unsure=False):
        # What the last link, or with `session` the broker, does not know any more.
        self.outbox.rewind(0x57 if session else 0x7F)
        self.in_flight = 0
        self._requests = {}
        self._ask = True
        self.subscribed = not self._filters
        for topic_filter in self._filters:
            if session or unsure or self._filters[topic_filter] & _GRANTED != _GRANTED:
                self._filters[topic_filter] &= ~_GRANTED
        for part in self._loaded:
            part.forget(session)

    def resume(self, session_present):
        """CONNACK accepted the connection: goes on with the broker's session, or begins a new one."""
        self.state = UP
        if not session_present:
            self.begin_session()
        elif self.outbox.released:
            self.part("qos2").resend()

    def begin_session(self):
        """The broker knows nothing of this client."""
        store = self.outbox.store
        if store.session is not None:
            store.session = None  # a power cut from here on must not leave half of it to be taken for whole
        if self.outbox.released or store.inbound and store.inbound.ids():
            self.part("qos2")
        self._forget(True)

    # Sending

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None):
        """Sends a message, or keeps it until there is a link.

        topic: str or bytes; payload: bytes, str, bytearray or memoryview; expires_in: ms after which it is dropped if
        it was never sent. Returns 0 at QoS 0, when the link took the message; above that its packet id, as long as
        it is in the outbox; None when it was dropped, and counted. Raises InvalidArgument, OutboxFull and StoreError;
        the message is not in the outbox then.
        """
        if topic is not self._topic:
            self._topic_bytes = check_topic_name(topic)
            self._topic = topic
        topic = self._topic_bytes
        if type(payload) is not bytes:
            # A copy: a message may wait while its buffer is used again.
            if isinstance(payload, str):
                payload = payload.encode()
            elif isinstance(payload, (bytearray, memoryview)):
                payload = bytes(payload)
            else:
                raise InvalidArgument("payload must be bytes, str, bytearray or memoryview")
        if qos == 0 and (self.state == UP or not self.queue_qos0):
            if self.state != UP or not self._send(_PUBLISH | (1 if retain else 0), topic, 0, payload):
                self.discarded += 1
                return None
            return 0
        if expires_in is not None and expires_in <= 0:
            raise InvalidArgument("expires_in must be positive")
        if qos not in (0, 1, 2) or len(topic) + len(payload) > 268435451:  # 2.2.3
            raise InvalidArgument("qos must be 0, 1 or 2, and the packet at most 268435455 bytes")
        if qos == 2:
            self.part("qos2")
        self.advance()
        flags = qos << 1 | (1 if retain else 0)
        packet_id = self._new_id()
        outbox = self.outbox
        try:
            lifetime = 0
            if expires_in is not None or self.policy or self.max_bytes or self.has_part("policy"):
                lifetime = self.part("policy").make_room(packet_id, topic, payload, expires_in)
            outbox.put(packet_id, flags, topic, payload, lifetime)
            self.pending += 1
        except OutboxFull:
            self.discarded += 1
            if self.policy == 2:
                return None
            raise
        if self.state == UP and self.in_flight < self.window and outbox.unsent() == packet_id:
            # Nothing waits before it.
            if self._send(_PUBLISH | flags, topic, packet_id, payload):
                self._sent(packet_id)
        return packet_id

    def _new_id(self):
        packet_id = self._last_id
        for _ in range(65535):
            packet_id = packet_id % 65535 + 1  # never 0 [MQTT-2.3.1-1]
            if packet_id not in self.outbox.slot_of and packet_id not in self._requests:
                self._last_id = packet_id
                return packet_id
        raise OutboxFull(65535)

    def _send(self, head, topic, packet_id, payload):
        out = self.out
        try:
            if self._ask:  # what the program asked for first goes first
                self._send_requests()
            # When there is no room: what waits is perhaps taken by now.
            if not out.put_publish(head, topic, packet_id, payload):
                if not out.flush() or not out.put_publish(head, topic, packet_id, payload):
                    return False
            out.flush()
        except OSError as error:  # publish() never raises for the network: tick() will close the link
            self._broken = error
        self.sent += 1
        return True

    def _pump(self):
        # Sends what may go now: acknowledgements, requests, PUBREL, then PUBLISH.
        if self._ask:
            self._send_requests()
        outbox = self.outbox
        for part in self._loaded:
            while not part.pump():
                if not self.out.flush():
                    return
        while self.in_flight < self.window:
            packet_id = outbox.unsent()
            if not packet_id:
                break
            slot = outbox.slot_of[packet_id]
            topic, payload = outbox.store.load(slot)
            if not topic:  # the store cannot read it any more: it must not hold up the others
                self.discarded += 1
                if self.on_dropped:
                    self.on_dropped(packet_id, topic, payload, _UNREADABLE)
                self.remove(packet_id)
                continue
            flags = outbox.flags[slot]
            if self.out.put_publish(_PUBLISH | flags & 15, topic, packet_id if flags & 6 else 0, payload):
                self.sent += 1
                self._sent(packet_id)
                if not flags & 6:
                    self.remove(packet_id)
            elif not self.out.flush():
                return
        self.out.flush()

    def _sent(self, packet_id):
        self.outbox.sent(packet_id)
        self.resumed(packet_id)

    def resumed(self, packet_id):
        """A message moved on, on this link: its acknowledgement is awaited from now on."""
        self.in_flight += self.outbox.resumed(packet_id, self.now)

    def remove(self, packet_id):
        """A message is delivered, or dropped."""
        self.in_flight -= self.outbox.remove(packet_id)
        self.pending -= 1

    def _send_requests(self):
        self._ask = False
        for topic_filter in self._filters:
            state = self._filters[topic_filter]
            if state & _ASKED:
                continue
            packet_id = self._new_id()
            body = bytes((packet_id >> 8, packet_id & 255)) + string(topic_filter)
            head = _UNSUBSCRIBE
            if not state & _LEAVING:
                head = _SUBSCRIBE
                body += bytes((state & 3,))
            if not self.out.put(packet(head, body)):
                self._ask = True
                return
            if not self._requests:
                self._asked_at = self.now
            self._requests[packet_id] = topic_filter
            self._filters[topic_filter] |= _ASKED
        self.subscribed = not self._requests

    # Receiving

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
                    raise ProtocolError("a packet larger than the receive buffer")
                self.large = self.part("large").begin(head, length)
                i = j
                continue
            if self.state == UP and kind == _PUBLISH:
                if not self._receive_publish(head, buf, j, end):
                    break
            elif head == _PUBACK and self.state == UP and length == 2:
                acked = True
                self.acknowledged(buf[j] << 8 | buf[j + 1], _PUBACK)
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
        self._describe(head, packet_id, head & _DUP > 0)
        if qos and self.manual_ack:
            self.part("manual").hold(packet_id)
        if self.on_raw:
            self._hand_over(self.on_raw, buf, t, k, p, end)
        else:
            view = self._view
            if view is None:
                view = self._view = memoryview(buf)
            if view[t:k] != self._seen:
                self._find_route(bytes(view[t:k]))
            self._deliver(self._seen, bytes(view[p:end]))
        if qos and self.state == UP and not self.manual_ack:
            self.out.put_ack(_PUBACK, packet_id)
        return True

    def check_inbound(self, topic):
        """Raises ProtocolError unless a PUBLISH may have that topic name [MQTT-3.3.2-2]."""
        try:
            check_topic_name(topic)
        except InvalidArgument as error:
            raise ProtocolError(error.args[0])

    def deliver_stored(self, flags, packet_id, topic, payload, redelivered):
        """Hands over a message that lay in the store."""
        self._describe(flags, packet_id, redelivered)
        if self.on_raw:
            k = len(topic)
            self._hand_over(self.on_raw, topic + payload, 0, k, k, k + len(payload))
            return
        if topic != self._seen:
            self._find_route(topic)
        self._deliver(topic, payload)

    def _describe(self, flags, packet_id, redelivered):
        self.received += 1
        self.flags = flags
        self.packet_id = packet_id
        self.redelivered = redelivered

    def _find_route(self, topic):
        self.check_inbound(topic)
        self._route = [handler for topic_filter, handler in self._handlers if matches(topic_filter, topic)]
        if not self._route and self.on_message:
            self._route.append(self.on_message)
        self._seen = topic

    def _deliver(self, topic, payload):
        if not self._route:
            self.unhandled += 1
        for handler in self._route:
            self._hand_over(handler, topic, payload)

    def _hand_over(self, handler, topic, payload, k=0, p=0, end=0):
        # Acknowledgements leave in the order of arrival [MQTT-4.6.0-2], so a message that is put off would hold up
        # all others: a handler that raises is tried again at once, and then the message is a dead letter.
        for _ in range(_TRIES):
            try:
                if end:
                    handler(topic, payload, k, p, end)
                else:
                    handler(topic, payload)
                return
            except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                failure = error
                self.redelivered = True
        self.dead_letters += 1
        if self.on_dead_letter:
            if end:
                topic, payload = bytes(topic[payload:k]), bytes(topic[p:end])
            self.on_dead_letter(topic, payload, failure)

    def acknowledged(self, packet_id, kind):
        """An acknowledgement of an outbound message; True when the flow goes on."""
        outbox = self.outbox
        slot = outbox.slot_of.get(packet_id)
        if slot is None or not outbox.flags[slot] & _DUP:
            self.unexpected += 1  # of a message from before a session that was lost
            return False
        state = OUTBOUND.get(kind << 8 | outbox.flags[slot] & 0x46)
        if state is None:
            raise ProtocolError("acknowledgement of another QoS")
        if state:
            return True
        self.remove(packet_id)
        if self.on_acknowledged:
            self.on_acknowledged(packet_id)
        return False

    def _receive_other(self, head, buf, j, length):
        # Any other packet; False when it must wait for room in the send buffer.
        kind = head & 0xF0
        # [MQTT-2.2.2-2] for the flags.
        if (
            self.state | kind not in LINK
            or head & 15 != (2 if kind == _PUBREL else 0)
            or length != (0 if kind == _PINGRESP else 3 if kind == _SUBACK else 2)
        ):
            raise ProtocolError("packet type %d is malformed or not expected" % (head >> 4))
        if kind == _PINGRESP:
            self._ping = 0
        elif kind == _CONNACK:
            if buf[j] > 1 or buf[j + 1] > 5 or buf[j] and buf[j + 1]:  # [MQTT-3.2.2-4]
                raise ProtocolError("CONNACK with reserved values")
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

    def advance(self):
        """The time may have moved on since the last tick: the owner of the clock sets `now`."""

    def connected_as(self, session_present, return_code):
        """CONNACK has come: the owner of the sockets decides."""

    # Subscribing

    def on(self, topic_filter, handler):
        """handler(topic: bytes, payload: bytes) takes the messages that the topic filter selects; None removes it."""
        topic_filter = check_topic_filter(topic_filter)
        self._handlers = [pair for pair in self._handlers if pair[0] != topic_filter]
        if handler:
            self._handlers.append((topic_filter, handler))
        self._seen = None

    def subscribe(self, topic_filter, qos=0):
        """Subscribes now, and again whenever the broker has forgotten it. A refusal goes to on_error."""
        topic_filter = check_topic_filter(topic_filter)
        if qos not in (0, 1, 2):
            raise InvalidArgument("qos must be 0, 1 or 2")
        if qos == 2:
            self.part("qos2")
        self._filters[topic_filter] = qos
        self._ask = True
        self.subscribed = False
        self._wait = 0  # tick() is due

    def unsubscribe(self, topic_filter):
        """Ends a subscription."""
        self._filters[check_topic_filter(topic_filter)] = _LEAVING
        self._ask = True
        self.subscribed = False
        self._wait = 0  # tick() is due

    def _answered(self, packet_id, return_code):
        topic_filter = self._requests.pop(packet_id, None)
        self._asked_at = self.now
        state = self._filters.get(topic_filter)
        if state is None or not state & _ASKED:  # nobody asked, or not for this any more
            self.unexpected += 1
        elif state & _LEAVING or return_code == 0x80:
            del self._filters[topic_filter]
            if return_code and self.on_error:
                self.on_error(Refused("subscribe", topic_filter))
        elif return_code > 2:  # [MQTT-3.9.3-2]
            raise ProtocolError("SUBACK with a reserved return code")
        else:
            self._filters[topic_filter] |= _GRANTED
        self.subscribed = not self._ask and not self._requests

    # Time

    def work(self):
        """Sends what may go and keeps the link alive; returns ms until the next deadline.

        Raises LinkLost when the link is dead, and what the transport raises.
        """
        if self.state != UP:
            if self.state == AWAIT_CONNACK:
                self.out.flush()
            return _NEVER
        if self._broken:
            raise self._broken
        self._pump()
        wait = self.keep_alive()
        if self.has_part("late"):
            wait = min(wait, self.part("late").due())
        if self.in_flight:
            # No message can be due before the one that was due next when they were last looked at.
            left = ticks_diff(self._look_at, self.now)
            if not 0 < left <= self.ack_timeout:
                left = self.ack_timeout - self.outbox.longest_wait(self.now)
                self._look_at = (self.now + left) & 0x3FFFFFFF
            wait = min(wait, left)
        if self._requests:
            wait = min(wait, self.ack_timeout - ticks_diff(self.now, self._asked_at))
        if wait <= 0:
            # Nothing is sent twice on a live link [MQTT-4.4.0-1]: it goes again on a new one.
            raise LinkLost("no acknowledgement within ack_timeout")
        self.out.flush()
        return wait

    def keep_alive(self):
        """Sends PINGREQ when it is due (3.1.2.10) and returns ms until the next deadline; raises LinkLost.

        PINGREQ is due when nothing was sent, or nothing arrived, for ping_after: the second finds a link that takes
        bytes and gives none, even under a steady flow at QoS 0. The link is dead when PINGREQ is outstanding and
        nothing at all arrived for ping_timeout; that clock starts when it is due, so a link that takes no bytes is
        found the same way. Another scheduler can stand in for this one: assign or override it.
        """
        limit = self._keep_alive
        if not limit:
            return _NEVER
        now = self.now
        quiet = ticks_diff(now, self.out.written_at)
        if not self._ping:
            left = (self.ping_after or limit // 2) - max(quiet, ticks_diff(now, self._heard_at))
            if left > 0:
                return left
            self._ping = 1
            self._ping_at = now
        if ticks_diff(self._heard_at, self._ping_at) > 0:
            self._ping_at = self._heard_at
        left = (self.ping_timeout or min(10000, limit // 2)) - ticks_diff(now, self._ping_at)
        # The second: things arrive, but nothing could be written for so long that the broker will give up.
        if left <= 0 or quiet >= 2 * limit:
            raise LinkLost("no answer to PINGREQ")
        if self._ping == 1 and self.out.has_room():
            self.out.put_ping()
            self._ping = 2
        return left
