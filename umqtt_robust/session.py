"""The protocol core: one client's session with a broker, over any number of links, without sockets.

    session = Session("pump-7", ticks=clock, on_message=print)
    session.open(write)          # a link is there: CONNECT goes to write(buf, offset, size)
    session.advance()            # time goes in: now is ticks()
    session.receive(buf, n)      # bytes go in; events come out as calls of on_message and the other callbacks
    wait_ms = session.work()     # sends what may go and keeps the link alive
    session.close()              # the link is gone

This is MQTT 3.1.1; mqtt5.py adds MQTT 5. Numbers in brackets are those of normative statements. Features that few
programs need are in modules of their own, each loaded when it is first needed: see part().
"""

from ._platform import NEVER, TICKS_MASK, const, load, print_exception, ticks_diff, ticks_ms
from .base_errors import LinkLost, MQTTError, OutboxFull, ProtocolError
from .packets import (
    AWAIT_CONNACK,
    AWAIT_PUBACK,
    BLOCKED,
    CLOSED,
    CONNACK,
    CONNECT,
    DISCONNECT,
    DUP,
    LINK,
    PING_DUE,
    PING_SENT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBLISH,
    QOS,
    QOS_2,
    RESERVE,
    RETAIN,
    SKIPPING,
    STATE,
    SUBACK,
    UNSUBACK,
    UP,
    SendBuffer,
    connect,
    decode_length,
)
from .store import MAYBE_SENT, MemoryStore, Outbox
from .subscriptions import LEAVING, Subscriptions

_LARGE = const(0xFFFFFF)  # bytes of payload
_QOS_0 = const(0)


def _is_plain(text):
    """Returns True if the bytes are not empty, and all are printable ASCII without wildcards."""
    for byte in text:
        if not 31 < byte < 127 or byte == 35 or byte == 43:  # "#", "+"
            return False
    return text != b""


def checked(text, check):
    # Returns a topic as bytes. Unless it is plain, the function of topics.py that `check` names validates it.
    plain = text
    if isinstance(text, str):
        try:
            plain = text.encode()
        except UnicodeError:
            pass  # the check raises
    if type(plain) is bytes and _is_plain(plain) and len(plain) < 65536:
        return plain
    return getattr(load("topics"), check)(text)


class Session:
    """One client's state. Arguments, callbacks, counters and attributes are described in Client."""

    # Options and callbacks that are seldom read. Those that every message needs are set on the instance, because an
    # attribute that only the class has costs several times as much to read.
    tx_size = 1024
    ping_timeout = policy = handler_retries = downgraded = too_large = dead_letters = quarantined = malformed = 0
    max_bytes = keep_broker_queue = connect_properties = None
    refused = None  # the last refusal of a message
    protocol = level = 4  # MQTT 3.1.1; level: of this link, or of the next one; 3: MQTT 3.1
    allow_mqtt31 = False
    purge = False  # CONNECT is sent to make the broker forget this client
    fetching = False  # a new link is being made for what the last one left: see backpressure.py
    on_connect = on_message = on_large = on_dropped = on_error = on_dead_letter = None

    def __init__(self, client_id, keep_alive=60, clean_session=True, store=None, will=None, username=None,
                 password=None, **options):  # fmt: skip
        # Define all attributes now, so the attribute table never has to be reallocated on a fragmented heap; those of
        # a link are defined by close(), at the end. And a call of a method searches this table first, which takes long
        # if it is nearly full: test_allocation.py watches it.
        self.ticks = ticks_ms
        self.window = 8
        self.ack_timeout = 30000
        self.ping_after = 0
        self.queue_qos0 = self.manual_ack = False
        self.on_raw = self.on_acknowledged = None
        self.mqtt5 = None  # the part of that name, while this link speaks MQTT 5
        for name in options:
            # Every other callable attribute so far is a method, not an option.
            default = getattr(self, name, print)
            value = options[name]
            bad = type(default) is int and name != "protocol" and (type(value) is not int or value < 0)
            if bad or name not in ("ticks", "random") and callable(default):
                raise load("checks").bad_option(name)
            setattr(self, name, value)
        self.clean_session = clean_session
        self.will = will
        self.username = username
        self.password = password
        self.state = CLOSED
        self.sent = self.received = self.discarded = self.unhandled = self.unexpected = 0
        self.packet_id = self.flags = self.last_id = 0
        self.wait_ms = self.up_since = self.heard_at = self._look_at = self.ping_at = 0
        self.broker = ""  # the name of the broker of this link
        self.retry_delay = None  # ms until the next link; None: whoever makes links decides
        self.redelivered = self.slept = False
        # "~" and the broker's name, once its half of the session was taken over; see resume.py.
        self.taken_over = False
        self._accepted = None
        self._topic = self  # what publish() checked last; at first no topic is this object
        self._topic_bytes = None
        # The topic that was received last, its handlers; matches() of topics.py, if a filter needs it.
        self._seen = self._route = self._matches = None
        self._rx = self._view = None  # the buffer that receive() got last
        self.parts = {}  # by name
        self._loaded = []  # the same, in a list: a handler may load another one during an iteration
        self.timers = []  # functions of parts that every tick calls; each returns ms until it must be called again
        self._handlers = []
        self.subscribed = False
        self.subscriptions = Subscriptions(self)
        self.now = self.ticks() & TICKS_MASK
        self.client_id = client_id = checked(client_id, "check_utf8")
        if store is None:
            store = MemoryStore()
        if (
            not client_id
            or not isinstance(keep_alive, int)
            or keep_alive >> 16
            or will is not None
            or username is not None
            or password is not None
            or self.ping_after
            or not self.window
            or not hasattr(store, "slots")
        ):
            load("checks").connect(self, keep_alive, store)
        self.keep_alive_ms = keep_alive * 1000
        self.out = SendBuffer(self.tx_size)
        self.start(Outbox(store, self.window))

    def start(self, outbox):
        """Uses an outbox from now on, with the messages in it."""
        self.outbox = outbox
        outbox.report = self.report
        self.pending = len(outbox.slot_of) + outbox.more - outbox.aside
        if self.pending:
            self.last_id = outbox.store.last_id if outbox.more else outbox.ids[outbox.before[outbox.end]]
        if outbox.more or self.policy or self.max_bytes:
            self.part("policy")
        if outbox.lifetimes:
            self.part("limits")
        if outbox.marks:
            self.part("quarantine")
        if self.protocol != 4 or self.connect_properties:
            self.part("mqtt5")
        self.close()

    def part(self, name):
        """Returns the optional part of the library with that name, made at the first call.

        Raises InvalidArgument if it is not installed.
        """
        part = self.parts.get(name)
        if not part:
            try:
                module = load(name)
            except ImportError:
                raise load("errors").InvalidArgument(name + " is not installed")
            part = self.parts[name] = module.part(self)
            self._loaded.append(part)
        return part

    def report(self, error):
        """Passes an error to on_error, if the program has set that."""
        if self.on_error:
            self.on_error(error)

    # The link

    def open(self, write, broker="", accepted=None):
        """Begins a link: sends CONNECT [MQTT-3.1.0-1].

        write(buf, offset, size) returns how many bytes it took, 0 or None if it takes none now; it raises OSError.
        broker: the name of the broker at the other end, to which the packet ids in the store belong. accepted(): called
        when that broker has accepted the client.
        """
        self.advance()
        self.state = AWAIT_CONNACK
        self.broker = broker
        self._accepted = accepted
        properties = self.protocol != 4 and self.part("mqtt5").open() or ()
        self.out.open(write)
        self.heard_at = self._look_at = self.now
        purge = self.purge  # without a will: the broker would publish it
        self.out.put(CONNECT, connect(self.client_id, self.keep_alive_ms // 1000, purge or self.clean_session,
                                      None if purge else self.will, self.username, self.password, self.level,
                                      *properties))  # fmt: skip
        self.out.flush()

    def close(self):
        """Handles the end of the link: unacknowledged messages are sent again on the next one."""
        # A broker that took CONNECT may have begun a new session, even where its CONNACK was lost.
        unsure = self.state == AWAIT_CONNACK
        self.state = CLOSED
        self.connected = False
        self.idle = False  # whether the last tick left nothing to do before wait_ms, and nothing has happened since
        self.large = self.broken = None
        self.out.open(None)
        self.ping = 0
        self._left = 0  # bytes that receive() left with the caller
        self.forget(False, unsure)

    def forget(self, session, unsure=True):
        """Drops the state that died with the link (`session`: with the broker's session).

        unsure: the broker may have forgotten the subscriptions.
        """
        self.outbox.rewind(session)
        self.in_flight = 0
        self.subscriptions.forget(unsure)
        # An inbound message is handed over while at most so many outbound ones are pending. One that was to be put back
        # comes again; backpressure.py keeps others.
        self.handover_limit = NEVER
        for part in self._loaded:
            part.forget(session)

    def handle_connack(self, session_present, return_code):
        """Handles CONNACK: continues the broker's session, or begins a new one. Raises Refused and LinkLost."""
        if return_code:
            load("malformed").refuse_connection(self, return_code)
        if self._accepted:
            self._accepted()
        if self.purge:
            self.part("resume").handle_purged()
        # MQTT 3.1 does not say whether a session is present: it is resumed as if it were.
        resumes = session_present or self.level & 127 == 3 and not self.clean_session
        if not (resumes and self.part("resume").check()):
            self.begin_session()
        self.belong_to(self.taken_over or self.broker, False)
        self.state = UP  # not before: what a callback publishes must not be sent until the session is settled
        if self.outbox.released:
            self.part("qos2").resend_pubrels()
        self.connected = True
        self.fetching = False
        self.up_since = self.now
        if self.on_connect:
            try:
                self.on_connect(bool(session_present))
            except OutboxFull as error:
                self.part("backpressure").connected(session_present, error)

    def begin_session(self, broker=None):
        """Begins a new session: the broker has none. broker: as for belong_to(), until that is called again."""
        self.taken_over = False
        inbound = self.outbox.store.inbound
        half_done = self.outbox.released or inbound and inbound.ids()
        # A power cut from here on must not leave half a session that is taken for a whole one.
        self.belong_to(broker, half_done)
        if half_done:
            self.part("qos2")
        self.forget(True)

    def belong_to(self, broker, must):
        """Records the broker that the state of this session belongs to from now on; None: it belongs to none.

        If the store cannot write that, the error is reported; with `must` it is raised, as StoreError.
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

    def send_disconnect(self):
        """Sends DISCONNECT, if the link takes it now."""
        try:
            self.out.put(DISCONNECT, b"")
            self.out.flush()
        except OSError as error:
            self.report(error)

    # Sending

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None, properties=None):
        """Sends a message, or keeps it in the outbox until it can be sent; at QoS 0 the latter only with queue_qos0.

        topic: str or bytes; payload: str, bytes or another buffer; expires_in: ms after which it is dropped if
        it was never sent; properties: of MQTT 5, see mqtt5.py. Returns the packet id of a message in the outbox; 0 if
        a message at QoS 0 was passed to the link, which no broker confirms; None if the message was dropped, which
        `discarded` counts. Raises InvalidArgument, OutboxFull and StoreError; the message is not in the outbox then.
        """
        if qos is _QOS_0 and not retain and not properties and self.put(topic, payload):  # False is no QoS
            try:
                self.out.flush()
                self.sent += 1
                return 0
            except OSError as error:
                self.broken = error  # as in _send(); it must not go twice if the link fails only once
                self.discarded += 1
                return None
        if topic is not self._topic:
            self._topic_bytes = checked(topic, "check_topic_name")
            self._topic = topic
        topic = self._topic_bytes
        if payload.__class__ is not bytes:
            payload = payload.encode() if isinstance(payload, str) else load("checks").copy(payload)
        if qos not in (0, 1, 2) or qos.__class__ is bool or expires_in is not None or len(payload) > _LARGE:
            load("checks").publish(len(topic) + len(payload), qos, expires_in)
        if properties or self.mqtt5:
            topic = self.part("mqtt5").publish(topic, payload, qos, expires_in, properties)
        head = PUBLISH | RETAIN if retain else PUBLISH
        up = self.state == UP
        if qos == 0:
            if up and not (self.queue_qos0 and self.outbox.next_unsent()) and self._send(head, topic, 0, payload):
                return 0
            if not self.queue_qos0:
                self.discarded += 1
                return None
        if qos == 2:
            self.part("qos2")
            self.belong_to(self.outbox.broker, True)
        self.advance()
        head |= qos << 1
        self.idle = False
        outbox = self.outbox
        # What new_packet_id() returns nearly always. On an RP2040 a call takes as long as all three lines.
        packet_id = self.last_id % 65535 + 1
        if packet_id in outbox.slot_of or packet_id in self.subscriptions.requests:
            packet_id = self.new_packet_id()
        self.last_id = packet_id
        try:
            lifetime = 0
            if expires_in is not None or "policy" in self.parts:
                lifetime = self.part("policy").make_room(packet_id, topic, payload, expires_in)
            outbox.put(packet_id, head & 15, topic, payload, lifetime)
        except (OutboxFull, MemoryError) as error:
            self.discarded += 1
            if self.policy == 2:
                return None
            raise OutboxFull(*error.args)
        self.pending += 1
        # When nothing waits before it:
        if qos and up and self.in_flight < self.window and outbox.head == outbox.slot_of.get(packet_id):
            self._send(head, topic, packet_id, payload)
        return packet_id

    def put(self, topic, payload):
        """Puts a small message at QoS 0 into the send buffer, as _send() does, if nothing is due or waits before it.

        topic: the one of the message before. Returns False if there is more to do. MicroPython's search for attributes,
        and the frames of larger functions, would take longer than all else that a message needs.
        """
        out = self.out
        if (
            topic is not self._topic
            or payload.__class__ is not bytes
            or out.end
            or not self.connected
            or not self.subscribed
            or self.queue_qos0
            or self.mqtt5
        ):
            return False
        tx = out._front
        topic = self._topic_bytes
        i = len(topic) + 4
        n = i + len(payload)
        if n > 129 or n + RESERVE > len(tx):  # 129: the remaining length takes one byte
            return False
        tx[0] = PUBLISH
        tx[1] = n - 2
        tx[2] = 0
        tx[3] = i - 4
        tx[4:i] = topic
        tx[i:n] = payload
        out.end = n
        return True

    def new_packet_id(self):
        """Returns a packet id that is not in use, 1 to 65535. Raises OutboxFull if there is none."""
        packet_id = self.last_id
        for _ in range(65535):
            packet_id = packet_id % 65535 + 1  # never 0 [MQTT-2.3.1-1]
            if packet_id not in self.outbox.slot_of and packet_id not in self.subscriptions.requests:
                self.last_id = packet_id
                return packet_id
        raise OutboxFull(65535)

    def _send(self, head, topic, packet_id, payload, at_once=True):
        # Puts a PUBLISH into the send buffer. Returns False if there is no room, even after a flush.
        if self.taken_over and head & (DUP | QOS_2) == QOS_2 and not self.part("resume").is_free(packet_id):
            return False
        out = self.out
        try:
            if self.subscriptions.must_send:  # what the program asked for first is sent first
                self.subscriptions.send()
            encoder = out
            sent_id = packet_id if head & QOS else 0
            if self.mqtt5:
                encoder = self.mqtt5
                sent_id = packet_id  # its lifetime is sent along, whatever its QoS
            elif b"\0" in topic:
                topic = topic.partition(b"\0")[0]  # the broker takes no properties
            if not encoder.put(head, payload, topic, sent_id):
                if not out.flush() or not encoder.put(head, payload, topic, sent_id):
                    return False
            if at_once:
                out.flush()
        except OSError as error:
            if not at_once:
                raise
            self.broken = error  # publish() never raises for the network: work() will
            if not packet_id:
                return False
        self.sent += 1
        if packet_id:
            self.outbox.head = self.outbox.next[self.outbox.head]
            self.in_flight += self.outbox.mark_in_flight(packet_id, self.now, MAYBE_SENT | DUP)  # [MQTT-3.3.1-2]
        return True

    def _pump(self):
        # Sends what may go now: acknowledgements, requests, PUBREL, then PUBLISH.
        if self.subscriptions.must_send:
            self.subscriptions.send()
        outbox = self.outbox
        for part in self._loaded:
            while not part.pump():
                if not self.out.flush():
                    return
        while self.in_flight < self.window and self.in_flight < self.pending:
            packet_id = outbox.next_unsent()
            if not packet_id:
                self.pending = len(outbox.slot_of) + outbox.more - outbox.aside  # it may have found damage in the store
                break
            slot = outbox.slot_of[packet_id]
            topic, payload = outbox.store.load(slot)
            flags = outbox.flags[slot] & 15
            if not topic or self.mqtt5 and self.mqtt5.is_too_large(flags, topic, packet_id, payload):
                # The store cannot read it any more, or this broker does not take it: it must not hold up the others.
                self.part("policy").drop_unsendable(packet_id)
            elif not self._send(PUBLISH | flags, topic, packet_id, payload, False):
                return
            elif not flags & QOS:
                self.remove(packet_id)
        if self.out.end:
            self.out.flush()

    def remove(self, packet_id):
        """Takes a message out of the outbox: it is delivered, or dropped."""
        self.in_flight -= self.outbox.remove(packet_id)
        self.pending -= 1

    # Receiving

    def receive(self, buf, n):
        """Handles the complete packets in buf[:n]. Returns how many bytes they take; the caller keeps the rest.

        It stops early when the send buffer has no room for an acknowledgement. Raises ProtocolError, and what the
        write function raises.
        """
        if n > self._left:  # not the same bytes again
            self.heard_at = self.now
        if self.state == AWAIT_CONNACK and n and buf[0] != CONNACK:
            raise load("malformed").no_broker(bytes(buf[:n]))
        if buf is not self._rx:
            self._rx = buf
            self._view = memoryview(buf)
        i = 0
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
            publishes = head & 0xF0 == PUBLISH
            if end > n:
                if end - i <= len(buf):
                    break
                if self.state != UP or not publishes:
                    raise ProtocolError("packet above rx_size")
                self.large = self.part("large").begin(head, length)
                i = j
                continue
            if self.state == UP and publishes:
                if not self._handle_publish(head, buf, j, end):
                    break
            elif head == PUBACK and self.state == UP and length == 2:
                self.handle_puback(buf[j] << 8 | buf[j + 1])
            elif not self._handle_other(head, buf, j, length):
                break
            if self.state == CLOSED:  # a callback closed the link
                return n
            i = end
        self._left = n - i
        if self.out.end:
            self.out.flush()
        return i

    def _handle_publish(self, head, buf, j, end):
        # Returns False if it must wait for room in the send buffer.
        qos = head & QOS
        t = j + 2
        k = t + (buf[j] << 8 | buf[j + 1]) if t <= end else end + 1
        p = k + 2 if qos else k
        packet_id = 0
        kept = b""
        if qos and p <= end:
            packet_id = buf[k] << 8 | buf[k + 1]
        # [MQTT-3.3.1-4], [MQTT-2.3.1-1]
        if p > end or qos == QOS or qos and not packet_id:
            raise ProtocolError("malformed PUBLISH")
        if qos and not self.out.has_room():
            return False
        view = self._view
        if self.mqtt5:
            p, kept = self.mqtt5.handle_publish(head, buf, t, k, p, end)
            if kept is None:  # it is handled there
                return p
        if head & (DUP | QOS) == DUP:  # [MQTT-3.3.1-2]
            self.part("malformed").count_dup(bytes(view[t:k]))
        try:
            if qos == QOS_2:
                self.part("qos2").handle_publish(head, packet_id, bytes(view[t:k]) + kept, bytes(view[p:end]))
                return True
            if self.pending > self.handover_limit:
                self.part("backpressure").take(head, packet_id, bytes(view[t:k]) + kept, bytes(view[p:end]))
                return True
            self.describe(head, packet_id, head & DUP > 0)
            if qos and self.manual_ack:
                self.part("manual_ack").hold(packet_id)
            if self.on_raw:
                self._call(self.on_raw, buf, t, k, p, end)
            else:
                if view[t:k] != self._seen:
                    self._find_route(bytes(view[t:k]))
                self._deliver(self._seen, bytes(view[p:end]))
            if self.handover_limit == BLOCKED:
                self.part("backpressure").put_back(head, packet_id, bytes(view[t:k]) + kept, bytes(view[p:end]))
            elif qos and self.state == UP and not self.manual_ack:
                self.out.put_ack(PUBACK, packet_id)
        except MemoryError:
            self.refuse(head, packet_id, view[t:k])
        return True

    def refuse(self, head, packet_id, topic):
        """Leaves a message, or a PUBREL, for which there is no memory to the next link. Raises MemoryError."""
        try:
            self.part("backpressure").refuse(head, packet_id, topic)
        except MemoryError:
            if self.clean_session or not head & QOS or "backpressure" in self.parts:
                raise
            # Not even for the flow control. All that follow are left too, while acknowledgements make room: see work().
            if self.manual_ack:
                self.part("manual_ack").let_go(packet_id)
            self.handover_limit = SKIPPING
            if self.pending > self.outbox.store.slots // 2:  # else nothing would have changed on the next link
                self.retry_delay = 0

    def handle_puback(self, packet_id):
        """Handles PUBACK. Raises ProtocolError and StoreError."""
        outbox = self.outbox
        slot = outbox.slot_of.get(packet_id)
        if slot is None or not outbox.flags[slot] & DUP:
            self.unexpected += 1  # of a message from before a session that was lost
        elif outbox.flags[slot] & STATE == AWAIT_PUBACK:
            self.in_flight -= outbox.remove(packet_id)  # remove(), without a call
            self.pending -= 1
            if self.on_acknowledged:
                self.on_acknowledged(packet_id)
        else:
            self.part("qos2").handle_acknowledgement(PUBACK, packet_id)

    def _handle_other(self, head, buf, j, length):
        # Handles any other packet. Returns False if it must wait for room in the send buffer.
        if self.mqtt5:
            length = self.mqtt5.receive(head, buf, j, length)
            if length is None:
                return True
        if self.state << 8 | head not in LINK or length != (3 if head == SUBACK else 0 if head == PINGRESP else 2):
            raise ProtocolError("unexpected packet %d" % (head >> 4))
        if head == PINGRESP:
            self.ping = 0
            return True
        if head == CONNACK:
            if buf[j] > 1:
                raise ProtocolError("bad CONNACK")
            self.handle_connack(buf[j], buf[j + 1])
            return True
        packet_id = buf[j] << 8 | buf[j + 1]
        if head == SUBACK or head == UNSUBACK:
            self.subscriptions.handle_answer(packet_id, buf[j + 2] if head == SUBACK else 0, ())
        elif not self.out.has_room():
            return False
        else:
            self.part("qos2").handle_acknowledgement(head, packet_id)
        return True

    # Handlers

    def on(self, topic_filter, handler):
        """Sets handler(topic: bytes, payload: bytes) for the messages that a topic filter matches; None removes it.

        Raises InvalidArgument.
        """
        topic_filter = checked(topic_filter, "check_topic_filter")
        if not _is_plain(topic_filter):
            self._matches = load("topics").matches
        self._handlers = [pair for pair in self._handlers if pair[0] != topic_filter]
        if handler:
            self._handlers.append((topic_filter, handler))
        self._seen = None

    def subscribe(self, topic_filter, qos=0):
        """Subscribes to a topic filter, and again whenever the broker has forgotten it.

        A refusal goes to on_error, and the client asks again after ack_timeout. Raises InvalidArgument.
        """
        if qos not in (0, 1, 2) or qos.__class__ is bool:
            load("checks").publish(0, qos)
        if qos == 2:
            self.part("qos2")
        self.subscriptions.want(checked(topic_filter, "check_topic_filter"), qos)

    def unsubscribe(self, topic_filter):
        """Ends a subscription. Raises InvalidArgument."""
        self.subscriptions.want(checked(topic_filter, "check_topic_filter"), LEAVING)

    def check_inbound(self, topic):
        """Returns True if a PUBLISH may have that topic name [MQTT-3.3.2-2]."""
        return _is_plain(topic) or not load("topics").check_inbound(topic)

    def describe(self, flags, packet_id, redelivered):
        """Sets the attributes that handlers read, of the message that is handed over next."""
        self.received += 1
        self.flags = flags
        self.packet_id = packet_id
        self.redelivered = redelivered

    def hand_over(self, topic, payload):
        """Hands over a message that was kept, after describe()."""
        if self.mqtt5:
            topic = self.mqtt5.hand_over(topic)
        if self.on_raw:
            k = len(topic)
            self._call(self.on_raw, topic + payload, 0, k, k, k + len(payload))
        else:
            if topic != self._seen:
                self._find_route(topic)
            self._deliver(topic, payload)

    def _find_route(self, topic):
        # Finds the handlers for messages of that topic.
        self._route = route = []
        for topic_filter, handler in self._handlers:
            if topic_filter == topic or self._matches and self._matches(topic_filter, topic):
                route.append(handler)
        if not self.check_inbound(topic):
            self._route = self.part("malformed").route(topic, route)
        self._seen = topic

    def _deliver(self, topic, payload):
        for handler in self._route or (self.on_message,):
            if handler:
                self._call(handler, topic, payload)
            else:
                self.unhandled += 1

    def _call(self, handler, topic, payload, k=0, p=0, end=0):
        # Calls a handler; with `end` on_raw, which takes (topic, payload, k, p, end) as buffer and offsets.
        # Acknowledgements leave in the order of arrival [MQTT-4.6.0-2], so a message that is put off would hold up
        # all others: a handler that raises is called again at once, handler_retries times; then the message is a dead
        # letter. A message whose handler found the outbox full waits for room instead: see backpressure.py.
        if self.handover_limit == BLOCKED:  # another handler of this message found no room
            return
        pending = self.pending
        for _ in range(1 + self.handler_retries):
            try:
                if end:
                    handler(topic, payload, k, p, end)
                else:
                    handler(topic, payload)
            except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                failure = error
                self.redelivered = True
                if pending and isinstance(error, OutboxFull):
                    self.discarded -= 1  # not dropped: the handler is called again
                    self.part("backpressure").block(self.pending - pending + 1)
                    return
                print_exception(error)
                continue
            if self.pending != pending and 2 * self.pending - pending > self.outbox.store.slots:
                try:
                    self.part("backpressure").learn(self.pending - pending)  # as many more would not fit
                except MemoryError:
                    pass  # not needed: a handler that finds no room is called again in any case
            return
        self.dead_letters += 1
        if self.on_dead_letter:
            if end:
                topic, payload = bytes(topic[payload:k]), bytes(topic[p:end])
            self.on_dead_letter(topic, payload, failure)

    # Time

    def advance(self):
        """Takes the time from ticks()."""
        now = self.ticks() & TICKS_MASK
        elapsed = now - self.now & TICKS_MASK
        self.now = self.out.now = now
        self.wait_ms -= elapsed
        if elapsed > self.ack_timeout:  # nobody has read the acknowledgements that may wait in the socket
            self.restart_ack_timer()
            if elapsed >> 29:  # ms: more than ticks_diff() can tell
                self.slept = True

    def restart_ack_timer(self):
        """Restarts the acknowledgement timer, because a packet makes progress on the link."""
        self.subscriptions.asked_at = self.now
        self._look_at = (self.now + self.ack_timeout) & TICKS_MASK

    def work(self):
        """Sends what may go and keeps the link alive; returns ms until the next deadline.

        Raises LinkLost when the link is dead, and what the write function raises.
        """
        out = self.out
        self.wait_ms = NEVER
        if self.state != UP:
            out.flush()  # CONNECT
            return NEVER
        if self.broken:
            raise self.broken
        if self.handover_limit == SKIPPING and self.pending <= self.outbox.store.slots // 2:
            self.part("backpressure")  # it asks for what was left; without memory for it, the next link brings that
        if self._loaded or self.subscriptions.must_send or out.end or self.in_flight < self.pending:
            self._pump()
        now = self.now
        if out.body is not None and out.written_at == now:
            # No acknowledgement can come before the end of a large packet.
            self.heard_at = now
            self.restart_ack_timer()
        wait = self.keep_alive()
        if self.in_flight:
            # No message is due before the one that was due first at the last look.
            left = ticks_diff(self._look_at, now)
            if not 0 < left <= self.ack_timeout:
                left = self.ack_timeout - self.outbox.longest_wait(now)
                self._look_at = now + left & TICKS_MASK
            wait = min(wait, left)
        subscriptions = self.subscriptions
        if subscriptions.requests or subscriptions.refused:
            left = self.ack_timeout - ticks_diff(now, subscriptions.asked_at)
            if left <= 0 and not subscriptions.requests:
                subscriptions.forget(False)
                left = 1  # refused ones are asked for in the next tick
            wait = min(wait, left)
        if wait <= 0:
            # Nothing is sent twice on a live link [MQTT-4.4.0-1]: it goes again on a new one.
            raise LinkLost("ack_timeout")
        if out.end:
            out.flush()
        return wait

    def keep_alive(self):
        """Sends PINGREQ when it is due (3.1.2.10) and returns ms until the next deadline; raises LinkLost.

        PINGREQ is due when nothing was sent, or nothing arrived, for ping_after: the second condition finds a link that
        takes bytes and delivers none, even under a steady flow at QoS 0. The link is dead if nothing at all arrives for
        ping_timeout after PINGREQ is due; whether it was sent does not matter, so this also finds a link that takes no
        bytes. To replace this scheduler, assign or override the method. A tick() that finds nothing to do does not call
        it before the time is over that it returned last.
        """
        limit = self.keep_alive_ms
        if not limit:
            return NEVER
        now = self.now
        quiet = ticks_diff(now, self.out.written_at)
        if not self.ping:
            left = (self.ping_after or limit // 2) - max(quiet, ticks_diff(now, self.heard_at))
            if left > 0:
                return left
            self.ping = PING_DUE
            self.ping_at = now
        if ticks_diff(self.heard_at, self.ping_at) > 0:
            self.ping_at = self.heard_at
        # The second limit: packets arrive, but nothing could be written for so long that the broker will give up.
        left = min((self.ping_timeout or min(10000, limit // 2)) - ticks_diff(now, self.ping_at), 2 * limit - quiet)
        if left <= 0:
            raise LinkLost("ping_timeout")
        if self.ping == PING_DUE and self.out.has_room():
            self.out.put_ack(PINGREQ)
            self.ping = PING_SENT
        return left
