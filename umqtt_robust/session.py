"""The protocol of one client, without sockets: bytes in, calls out, bytes to a write function; time is an argument.

MQTT 3.1.1; what stands in brackets is the number of a normative statement. What few programs need lies in modules of
its own, loaded when it is first needed: see part(). What arrives is in incoming.py, subscriptions in subscriptions.py.
"""

from ._platform import const, ticks_diff
from .base_errors import LinkLost, MQTTError, OutboxFull
from .parts import load
from .sending import SendBuffer
from .states import AWAIT_CONNACK, CLOSED, UP
from .subscriptions import Subscriptions, checked

_CONNECT = const(0x10)
_PUBLISH = const(0x30)
_PINGREQ = const(0xC0)
_NEVER = const(0x1FFFFFFF)
_LARGE = const(0xFFFFFF)  # bytes of payload


class Session(Subscriptions):
    """One client's state, over any number of links. The public attributes are described in Client."""

    handler_retries = downgraded = 0
    clean_session = True  # nothing can be left to the broker for the next link

    def __init__(self):
        """Makes every attribute, also those that the first link will set; start() comes next."""
        # The table of an instance's attributes is one piece that grows by steps: here it does before anything else
        # takes room. And a call of a method looks there first, which takes long in a table that is nearly full:
        # test_allocation.py watches it.
        self.state = CLOSED
        self.sent = self.received = self.discarded = self.unhandled = self.dead_letters = self.unexpected = 0
        self.too_large = self.packet_id = self.flags = self.pending = self.in_flight = self.last_id = 0
        self.now = self._wait = self._heard_at = self._look_at = self._ping_at = self._asked_at = 0  # ms
        self._left = 0  # bytes that receive() left with the caller
        self._ping = 0  # 1: PINGREQ is due, 2: it was sent
        self._ask = True  # a SUBSCRIBE or UNSUBSCRIBE is to be sent
        # Inbound flow control, see holding.py: a message is handed over while pending <= _room; WAIT, BLOCKED: none is.
        self._room = _NEVER
        self.redelivered = self.subscribed = False
        # "~" and the broker's name: its half of the session is not from this start, see resume.py.
        self.taken_over = False
        self.outbox = self.out = self.large = self._broken = self._keep_alive = None
        self._topic = self._topic_bytes = None  # the topic that publish() checked last
        # The topic that was received last, its handlers; matches() of topics.py, when a filter needs it.
        self.seen = self._route = self._matches = self._view = None
        self.parts = {}  # Part by name
        self._loaded = []  # the same, in a list: a handler may load another one while it is walked through
        self.timers = []  # functions of parts that every tick calls; each returns ms until it must be called again
        self._handlers = []
        self._filters = {}
        # Packet id of an unanswered SUBSCRIBE or UNSUBSCRIBE: topic filter, or None when a later request replaced it.
        self._requests = {}

    def start(self, outbox, keep_alive):
        """keep_alive: ms, 0: off."""
        self.outbox = outbox
        outbox.report = self.report
        self._keep_alive = keep_alive
        self.pending = len(outbox.queue)
        if self.pending:
            self.last_id = outbox.queue[-1]
        self.out = SendBuffer(self.tx_size)
        if outbox.lifetimes or self.policy or self.max_bytes:
            self.part("policy")
        self.close()

    def part(self, name):
        """The Part of the module of that name: an optional part of the library.

        Raises InvalidArgument when it is not installed.
        """
        part = self.parts.get(name)
        if not part:
            try:
                module = load(name)
            except ImportError:
                raise load("errors").InvalidArgument(name + " is not installed")
            part = self.parts[name] = module.Part(self)
            self._loaded.append(part)
        return part

    # The link

    def open(self, write, connect):
        """A link is there: CONNECT goes first [MQTT-3.1.0-1].

        write: as SendBuffer.open() takes it. connect: its bytes after the fixed header.
        """
        self.state = AWAIT_CONNACK
        self.out.open(write)
        self._heard_at = self._look_at = self.now
        self.out.put(_CONNECT, connect)
        self.out.flush()

    def close(self):
        """The link is gone: what was not acknowledged goes again on the next one."""
        # A broker that took CONNECT may have begun a new session, even where its CONNACK was lost.
        unsure = self.state == AWAIT_CONNACK
        self.state = CLOSED
        self.large = self._broken = None
        self.out.open(None)
        self._left = self._ping = 0
        self._forget(False, unsure)

    def _forget(self, session, unsure=True):
        # What the last link, or with `session` the broker, does not know any more.
        self.outbox.rewind(0x77 if session else 0x7F)
        self.in_flight = 0
        self._forget_requests(unsure)
        for part in self._loaded:
            part.forget(session)

    def resume(self, session_present):
        """CONNACK accepted the connection: goes on with the broker's session, or begins a new one."""
        if not session_present:
            self.begin_session()
        self.state = UP  # not before: what a callback publishes must not be sent and then begun anew
        if self.outbox.released:
            self.part("qos2").resend()

    def begin_session(self, broker=None):
        """The broker knows nothing of this client. broker: whose session it is until belong_to() says more."""
        self.taken_over = False
        inbound = self.outbox.store.inbound
        half_done = self.outbox.released or inbound and inbound.ids()
        # A power cut from here on must not leave half of it to be taken for whole.
        self.belong_to(broker, half_done)
        if half_done:
            self.part("qos2")
        self._forget(True)

    def belong_to(self, broker, must):
        """The state of this session is that broker's from now on, or nobody's.

        Where the store cannot write that, it is reported; with `must` StoreError is raised.
        """
        self.outbox.broker = broker
        store = self.outbox.store
        if store.session != broker:
            try:
                store.session = broker
            except MQTTError as error:
                if must:
                    raise
                self.report(error)

    # Sending

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None):
        """Sends a message, or keeps it until there is a link.

        topic: str or bytes; payload: bytes, str, bytearray or memoryview; expires_in: ms after which it is dropped if
        it was never sent. Returns 0 at QoS 0, when the message is on its way, which no broker confirms; above that its
        packet id, as long as it is in the outbox; None when it was dropped, and counted. Raises InvalidArgument,
        OutboxFull and StoreError; the message is not in the outbox then.
        """
        if topic is not self._topic:
            self._topic_bytes = checked(topic, "check_topic_name")
            self._topic = topic
        topic = self._topic_bytes
        if type(payload) is not bytes:
            payload = payload.encode() if isinstance(payload, str) else load("checks").copy(payload)
        flags = _PUBLISH | 1 if retain else _PUBLISH
        up = self.state == UP
        if qos == 0:
            if up and not (self.queue_qos0 and self.outbox.unsent()) and self._send(flags, topic, 0, payload):
                return 0
            if not self.queue_qos0:
                self.discarded += 1
                return None
        if qos not in (0, 1, 2) or expires_in is not None or len(payload) > _LARGE:
            load("checks").publish(len(topic) + len(payload), qos, expires_in)
        if qos == 2:
            self.part("qos2")
            self.belong_to(self.outbox.broker, True)
        self.advance()
        flags |= qos << 1
        packet_id = self._new_id()
        outbox = self.outbox
        try:
            lifetime = 0
            if expires_in is not None or "policy" in self.parts:
                lifetime = self.part("policy").make_room(packet_id, topic, payload, expires_in)
            outbox.put(packet_id, flags & 15, topic, payload, lifetime)
        except OutboxFull:
            self.discarded += 1
            if self.policy == 2:
                return None
            raise
        self.pending += 1
        # When nothing waits before it:
        if qos and up and self.in_flight < self.window and outbox.unsent() == packet_id:
            self._send(flags, topic, packet_id, payload)
        return packet_id

    def _new_id(self):
        packet_id = self.last_id
        for _ in range(65535):
            packet_id = packet_id % 65535 + 1  # never 0 [MQTT-2.3.1-1]
            if packet_id not in self.outbox.slot_of and packet_id not in self._requests:
                self.last_id = packet_id
                return packet_id
        raise OutboxFull(65535)

    def _send(self, head, topic, packet_id, payload, at_once=True):
        # Puts a PUBLISH, unless there is no room for it even when the link has taken what it takes; False then.
        if self.taken_over and head & 12 == 4 and not self.part("resume").is_free(packet_id):
            return False
        out = self.out
        try:
            if self._ask:  # what the program asked for first goes first
                self._send_requests()
            if not out.put(head, payload, topic, packet_id):
                if not out.flush() or not out.put(head, payload, topic, packet_id):
                    return False
            if at_once:
                out.flush()
        except OSError as error:
            if not at_once:
                raise
            self._broken = error  # publish() never raises for the network: tick() will close the link
            if not packet_id:
                return False
        self.sent += 1
        if packet_id:
            self.in_flight += self.outbox.sent(packet_id, self.now)
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
            flags = outbox.flags[slot] & 15
            if not topic:  # the store cannot read it any more: it must not hold up the others
                self.part("policy").drop_unreadable(packet_id)
            elif not self._send(_PUBLISH | flags, topic, packet_id if flags & 6 else 0, payload, False):
                return
            elif not flags & 6:
                self.remove(packet_id)
        self.out.flush()

    def remove(self, packet_id):
        """A message is delivered, or dropped."""
        self.in_flight -= self.outbox.remove(packet_id)
        self.pending -= 1

    # Time

    def work(self):
        """Sends what may go and keeps the link alive; returns ms until the next deadline.

        Raises LinkLost when the link is dead, and what the transport raises.
        """
        if self.state != UP:
            self.out.flush()  # CONNECT
            return _NEVER
        if self._broken:
            raise self._broken
        self._pump()
        if self.out.body is not None and self.out.written_at == self.now:
            # No acknowledgement can come before the end of a large packet: that the link takes it counts as one.
            self._heard_at = self._asked_at = self.now
            self._look_at = (self.now + self.ack_timeout) & 0x3FFFFFFF
        wait = self.keep_alive()
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
            raise LinkLost("ack_timeout")
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
            raise LinkLost("ping_timeout")
        if self._ping == 1 and self.out.has_room():
            self.out.put_ack(_PINGREQ)
            self._ping = 2
        return left
