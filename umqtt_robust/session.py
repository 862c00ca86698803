"""The protocol of one client, without sockets: bytes in, calls out, bytes to a write function; time is an argument.

MQTT 3.1.1; what stands in brackets is the number of a normative statement. QoS 2 lies in qos2.py and inbound messages
larger than the receive buffer in large.py: both are loaded when they are first needed.
"""

from ._platform import const, ticks_diff
from .dispatch import Dispatcher
from .errors import InvalidArgument, LinkLost, OutboxFull, ProtocolError, SubscribeRefused
from .outbox import DROP_NEWEST
from .packets import decode_length
from .sending import SendBuffer
from .states import AWAIT_CONNACK, AWAIT_PUBACK, AWAIT_PUBREC, CLOSED, LINK, OUTBOUND, UP
from .subscriptions import Subscriptions
from .topics import check_topic_filter, check_topic_name

_CONNACK = const(0x20)
_PUBLISH = const(0x30)
_PUBACK = const(0x40)
_PUBREL = const(0x60)
_SUBACK = const(0x90)
_UNSUBACK = const(0xB0)
_PINGRESP = const(0xD0)
_DUP = const(0x08)
_MAX_LENGTH = const(268435455)  # of the remaining length, 2.2.3
_NEVER = const(0x1FFFFFFF)


class Session:
    """One client's state, over any number of links.

    outbox: an Outbox; keep_alive: a KeepAlive; window: how many messages may be in flight; ack_timeout: ms;
    tx_size: bytes; queue_qos0: keep messages at QoS 0 in the outbox while there is no link.
    on_connack(session_present, return_code), on_acknowledged(token), on_error(error) and
    on_large(topic, offset, size, chunk), as Client's, are None or callables.
    """

    def __init__(self, outbox, keep_alive, window=8, ack_timeout=30000, tx_size=1024, queue_qos0=False):
        self.state = CLOSED
        self.outbox = outbox
        self.keep_alive = keep_alive
        self.window = window
        self.ack_timeout = ack_timeout
        self.queue_qos0 = queue_qos0
        self.manual_ack = False
        self.out = SendBuffer(tx_size)
        self.inbound = Dispatcher()
        self.subscriptions = Subscriptions()
        self.on_connack = self.on_acknowledged = self.on_error = self.on_large = None
        self.sent = self.discarded = self.unexpected = self.too_large = 0
        self.uptime = self._uptime_ms = 0  # seconds, and what has not made a second yet
        self.broken = None  # what a write outside tick() raised
        self._last_id = outbox.restore(window)
        self._topic = self._topic_bytes = None  # the topic that publish() checked last
        # Packet ids at QoS 1 that the program has not acknowledged, in order of arrival; negative: an
        # acknowledgement, its type above its packet id, that waits for those before it or for room.
        self._held = []
        self._qos2 = self._large = None
        self._heard_at = 0
        self._left = 0  # bytes that receive() left with the caller

    # The link

    def open(self, write, connect_packet, now):
        """A link is there: CONNECT goes first [MQTT-3.1.0-1]. write: as SendBuffer.open()."""
        self.close()
        self.state = AWAIT_CONNACK
        self._heard_at = self.out.now = now
        self.out.open(write)
        self.keep_alive.start()
        self.out.put(connect_packet)
        self.out.flush()

    def close(self):
        """The link is gone: what was not acknowledged goes again on the next one."""
        self.state = CLOSED
        self.broken = self._large = None
        self._held = []
        self._left = 0
        if self._qos2:
            self._qos2.link_lost()
        self.out.open(None)
        self.outbox.rewind()
        self.subscriptions.link_lost()

    def resume(self, session_present):
        """CONNACK accepted the connection: goes on with the broker's session, or begins a new one."""
        self.state = UP
        outbox = self.outbox
        if session_present:
            if outbox.released:
                self.qos2().resend()
        else:
            outbox.store.clear_inbound()  # a stale id would swallow a new message
            outbox.forget_sent()  # the broker knows no packet id: everything goes again as new
            self.subscriptions.session_lost()

    # Sending

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None):
        """See Client.publish()."""
        if topic is not self._topic:
            self._topic_bytes = check_topic_name(topic)
            self._topic = topic
        topic = self._topic_bytes
        if type(payload) is not bytes:
            payload = _to_bytes(payload)
        if qos == 0 and (self.state == UP or not self.queue_qos0):
            if self.state != UP or not self._send_now(_PUBLISH | (1 if retain else 0), topic, 0, payload):
                self.discarded += 1
                return None
            return 0
        return self._publish_stored(topic, payload, qos, retain, expires_in)

    def _publish_stored(self, topic, payload, qos, retain, expires_in):
        if qos not in (0, 1, 2):
            raise InvalidArgument("qos must be 0, 1 or 2")
        if qos == 2:
            self.qos2()
        if len(topic) + len(payload) > _MAX_LENGTH - 4:
            raise InvalidArgument("payload is too long")
        expires = lifetime = 0
        if expires_in is not None:
            if expires_in <= 0:
                raise InvalidArgument("expires_in must be positive")
            lifetime = (expires_in + 999) // 1000
            expires = self.uptime + lifetime + 1  # whole seconds, and never early
        flags = qos << 1 | (1 if retain else 0)
        outbox = self.outbox
        packet_id = self._new_id()
        try:
            slot = outbox.put(
                topic, payload, AWAIT_PUBREC if qos == 2 else AWAIT_PUBACK, flags, packet_id, expires, lifetime
            )
        except OutboxFull:
            self.discarded += 1
            if outbox.policy == DROP_NEWEST:
                return None
            raise
        token = outbox.order[slot]
        if (
            self.state == UP
            and outbox.in_flight < self.window
            and outbox.unsent(self.uptime) == slot  # nothing waits before it
        ):
            if self._send_now(_PUBLISH | flags, topic, packet_id, payload):
                outbox.sent(slot, self.out.now)
        return token

    def _new_id(self):
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65535 else 1  # never 0 [MQTT-2.3.1-1]
            if packet_id not in self.outbox.by_id and packet_id not in self.subscriptions.requests:
                self._last_id = packet_id
                return packet_id
            if packet_id == self._last_id:
                raise OutboxFull(65535)

    def _send_now(self, head, topic, packet_id, payload):
        out = self.out
        try:
            if not out.put_publish(head, topic, packet_id, payload):
                # What waits is perhaps taken by now.
                if not out.flush() or not out.put_publish(head, topic, packet_id, payload):
                    return False
            out.flush()
        except OSError as error:  # publish() never raises for the network: tick() will close the link
            self.broken = error
        self.sent += 1
        return True

    def pump(self):
        """Sends what may go now: acknowledgements, requests, PUBREL, then PUBLISH. Raises what the transport raises."""
        out = self.out
        outbox = self.outbox
        if self._held:
            self._release_held()
        if self.subscriptions.waiting:
            self.subscriptions.send(out, self._new_id, out.now)
        if self._qos2 and not self._qos2.pump():
            return
        while outbox.in_flight < self.window:
            slot = outbox.unsent(self.uptime)
            if slot < 0:
                break
            topic, payload = outbox.store.load(slot)
            flags = outbox.flags[slot]
            packet_id = outbox.packet_id[slot] if flags & 6 else 0
            if out.put_publish(_PUBLISH | flags, topic, packet_id, payload):
                outbox.sent(slot, out.now)
                self.sent += 1
                if not packet_id:
                    outbox.remove(slot)
            elif not out.flush():
                return
        out.flush()

    # Receiving

    def receive(self, buf, n):
        """Takes the whole packets from buf[:n] and returns how many bytes that was; the caller keeps the rest.

        It stops early when the send buffer has no room for an acknowledgement. Raises ProtocolError.
        """
        if n > self._left:  # not the same bytes again
            self._heard_at = self.out.now
        i = 0
        acked = False
        if self._large:
            i = self._continue_large(buf, 0, n)
        while n - i > 1 and not self._large:
            length = buf[i + 1]
            j = i + 2
            if length > 127:
                got = decode_length(buf, i + 1, n)
                if got is None:
                    break
                length, j = got
            end = j + length
            head = buf[i]
            if end > n:
                if end - i > len(buf):
                    self._begin_large(head, length)
                    i = self._continue_large(buf, j, n)
                break
            if self.state == UP and head & 0xF0 == _PUBLISH:
                if not self._receive_publish(head, buf, j, end):
                    break
            elif self.state == UP and head == _PUBACK and length == 2:
                acked = True
                self.acknowledged(buf[j] << 8 | buf[j + 1], _PUBACK)
            elif not self._receive_other(head, buf, j, length):
                break
            if self.state == CLOSED:  # a callback closed the link
                return n
            i = end
        self._left = n - i
        if acked:
            self.pump()
        elif self.out.end:
            self.out.flush()
        return i

    def _receive_publish(self, head, buf, j, end):
        qos = head & 6
        t = j + 2
        k = t + (buf[j] << 8 | buf[j + 1]) if t <= end else end + 1
        p = k + 2 if qos else k
        if p > end:
            raise ProtocolError("PUBLISH ends inside its topic name or packet identifier")
        if not qos:
            if head & _DUP:
                raise ProtocolError("PUBLISH at QoS 0 with DUP")  # [MQTT-3.3.1-2]
            self.inbound.deliver(head, 0, buf, t, k, p, end)
            return True
        out = self.out
        if not out.has_room_for_ack():
            return False
        packet_id = buf[k] << 8 | buf[k + 1]
        if not packet_id:
            raise ProtocolError("PUBLISH with packet identifier 0")  # [MQTT-2.3.1-1]
        if qos != 2:
            if qos == 6:
                raise ProtocolError("PUBLISH at QoS 3")  # [MQTT-3.3.1-4]
            self.qos2().received(head, packet_id, bytes(buf[t:k]), bytes(buf[p:end]))
            return True
        self.to_acknowledge(head, packet_id, buf, t, k, p, end)
        return True

    def to_acknowledge(self, head, packet_id, buf, t, k, p, end):
        """Delivers a message at QoS 1 and acknowledges it after those that came before it [MQTT-4.6.0-2]."""
        if self.manual_ack:
            self._held.append(packet_id)
        self.inbound.deliver(head, packet_id, buf, t, k, p, end)
        if not self.manual_ack and self.state == UP:
            self.put_ack(_PUBACK, packet_id)

    def put_ack(self, kind, packet_id):
        """Sends PUBACK or PUBCOMP, after those that are held back."""
        if self._held or not self.out.has_room_for_ack():  # a handler may have filled the buffer
            self._held.append(-(kind << 16 | packet_id))
            self._release_held()
        else:
            self.out.put_ack(kind, packet_id)

    def _begin_large(self, head, length):
        if self.state != UP or head & 0xF0 != _PUBLISH:
            raise ProtocolError("packet type %d is larger than the receive buffer" % (head >> 4))
        from .large import LargeMessage

        self._large = LargeMessage(self, head, length)

    def _continue_large(self, buf, i, n):
        i = self._large.feed(buf, i, n)
        if self._large.ended:
            self._large = None
        return i

    def acknowledged(self, packet_id, kind):
        """An acknowledgement of an outbound message; returns its slot when the flow goes on, -1 otherwise."""
        outbox = self.outbox
        slot = outbox.by_id.get(packet_id)
        if slot is None or not outbox.flags[slot] & _DUP:
            self.unexpected += 1  # of a message from before a session that was lost
            return -1
        state = OUTBOUND.get(outbox.state[slot] | kind)
        if state is None:
            raise ProtocolError("acknowledgement type %d in state %d" % (kind >> 4, outbox.state[slot]))
        if state:
            return slot
        token = outbox.order[slot]
        outbox.remove(slot)
        if self.on_acknowledged:
            self.on_acknowledged(token)
        return -1

    def _receive_other(self, head, buf, j, length):
        kind = head & 0xF0
        if (self.state | kind) not in LINK:
            raise ProtocolError("packet type %d was not expected" % (kind >> 4))
        if head & 15 != (2 if kind == _PUBREL else 0):  # [MQTT-2.2.2-2]
            raise ProtocolError("packet type %d with reserved flags" % (kind >> 4))
        if length != (0 if kind == _PINGRESP else 3 if kind == _SUBACK else 2):
            raise ProtocolError("packet type %d of the wrong length" % (kind >> 4))
        if kind == _PINGRESP:
            self.keep_alive.answered()
            return True
        if kind == _CONNACK:
            session_present = buf[j]
            return_code = buf[j + 1]
            if session_present > 1 or return_code > 5 or session_present and return_code:  # [MQTT-3.2.2-4]
                raise ProtocolError("CONNACK with reserved values")
            self.on_connack(session_present, return_code)
            return True
        packet_id = buf[j] << 8 | buf[j + 1]
        if not packet_id:
            raise ProtocolError("packet type %d with packet identifier 0" % (kind >> 4))
        if kind == _SUBACK or kind == _UNSUBACK:
            self._answered(packet_id, buf[j + 2] if kind == _SUBACK else None)
        elif not self.out.has_room_for_ack():
            return False
        else:
            self.qos2().acknowledged(kind, packet_id)
        return True

    def _answered(self, packet_id, return_code):
        try:
            if not self.subscriptions.answered(packet_id, return_code, self.out.now):
                self.unexpected += 1
        except SubscribeRefused as error:
            if self.on_error:
                self.on_error(error)

    def qos2(self):
        """The part that speaks QoS 2. Raises InvalidArgument where its module is not installed."""
        if self._qos2 is None:
            try:
                from .qos2 import QoS2
            except ImportError:
                raise InvalidArgument("QoS 2 needs the module umqtt_robust.qos2")
            self._qos2 = QoS2(self)
        return self._qos2

    def acknowledge(self, packet_id):
        """See Client.acknowledge()."""
        if packet_id not in self._held:
            return self._qos2 is not None and self._qos2.handled(packet_id)
        self._held[self._held.index(packet_id)] = -(_PUBACK << 16 | packet_id)
        return True

    def _release_held(self):
        held = self._held
        while held and held[0] < 0 and self.out.has_room_for_ack():
            ack = -held.pop(0)
            self.out.put_ack(ack >> 16, ack & 65535)

    # Subscribing

    def subscribe(self, topic_filter, qos=0):
        """See Client.subscribe()."""
        topic_filter = check_topic_filter(topic_filter)
        if qos not in (0, 1, 2):
            raise InvalidArgument("qos must be 0, 1 or 2")
        if qos == 2:
            self.qos2()
        self.subscriptions.add(topic_filter, qos)

    def unsubscribe(self, topic_filter):
        """See Client.unsubscribe()."""
        self.subscriptions.remove(check_topic_filter(topic_filter))

    # Time

    def advance(self, now):
        """It is `now`; called before receive() and tick(). Raises LinkLost after a sleep of many days."""
        elapsed = ticks_diff(now, self.out.now)
        self.out.now = now
        slept = elapsed < 0  # at least 2**29 ms
        if slept:
            self.uptime += 536870
            elapsed += 0x20000000
        elapsed += self._uptime_ms
        self.uptime += elapsed // 1000
        self._uptime_ms = elapsed % 1000
        if slept and self.state != CLOSED:
            raise LinkLost("this device slept for days")

    def tick(self):
        """Sends what may go and keeps the link alive; returns ms until the next deadline.

        Raises LinkLost when the link is dead, and what the transport raises.
        """
        now = self.out.now
        if self.state != UP:
            if self.state == AWAIT_CONNACK:
                self.out.flush()
            return _NEVER
        if self.broken:
            raise self.broken
        self.pump()
        wait = self.keep_alive.check(now, self.out, self._heard_at)
        slot = self.outbox.oldest_in_flight()
        if slot >= 0:
            wait = min(wait, self.ack_timeout - ticks_diff(now, self.outbox.sent_at[slot]))
        if self.subscriptions.requests:
            wait = min(wait, self.ack_timeout - ticks_diff(now, self.subscriptions.asked_at))
        if wait <= 0:
            # Nothing is sent twice on a live link [MQTT-4.4.0-1]: it goes again on a new one.
            raise LinkLost("no acknowledgement within ack_timeout")
        self.out.flush()
        return wait


def _to_bytes(payload):
    # A copy: a message may wait in the outbox while its buffer is used again.
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise InvalidArgument("payload must be bytes, str, bytearray or memoryview")
