"""A broker in memory that records every broken law that a broker can see, in `faults`."""

from umqtt_testkit.encoder import (
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    acknowledgement,
    connack,
    encode,
    parse_properties,
    parse_publish,
    properties,
    publish,
    split_packets,
    string,
)

# With MQTT 5: how many messages a client may have in flight.
_RECEIVE_MAXIMUM = 2


def _selects(topic_filter, topic):
    """Return whether a filter without `+` selects a topic."""
    if topic_filter[-1:] == b"#":
        return topic.startswith(topic_filter[:-1]) or topic == topic_filter[:-2]
    return topic_filter == topic


class Outgoing:
    """A message to the client."""

    def __init__(self, packet_id, topic, payload, qos):
        self.packet_id = packet_id
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.sent = self.released = False


class BrokerSession:
    """The state that outlasts a link."""

    def __init__(self, wire=None):
        self.born_on = wire
        self.subscriptions = {}
        self.queue = []  # Outgoing
        self.last_id = 0
        self.inbound = {}  # QoS 2 packet ids between PUBLISH and PUBREL: (topic, payload)
        # PUBLISHes whose last acknowledgement the client has not read: packet id: (topic, payload, wire).
        self.in_use = {}
        self.place = {}  # packet id: the position of its PUBREC among all that the client has read
        self.places = 0
        self.told = False  # the client knows that the session began as a new one

    def client_reset(self):
        """Drop the checks of packet ids: the client has lost its memory, so it may release any packet id."""
        self.in_use = {}
        self.place = {}
        self.told = False


class Broker:
    """A broker of MQTT 3.1.1 and 5 for one client at a time.

    late: accepts a message at QoS 2 at PUBREL, not at PUBLISH. hold_recs: holds PUBRECs back until there are so
    many, then sends them in reverse order. lose_sessions: a lost link loses the session too. lost_unseen: the client
    may not have seen that, so it may continue the old session. down: refuses connections. mqtt31: speaks only MQTT
    3.1. taken: (topic, payload) of every message that it accepted; at QoS 1, of every copy.
    labels: the correlation data of each message by payload, None if it had none. Messages to a client of MQTT 5 carry
    the beginning of their payload there.
    aliases: how many topic aliases a client may use; the broker uses as many as the client allows. aliased: how many
    messages had no topic name, [from the client, to the client].
    """

    def __init__(self, name="a", return_code=0, late=False, hold_recs=0, mqtt31=False, aliases=0):
        self.name = name
        self.aliases = aliases
        self.aliased = [0, 0]
        self.return_code = return_code
        self.late = late
        self.hold_recs = hold_recs
        self.mqtt31 = mqtt31
        self.sessions = {}
        self.wire = self.session = None
        self.rest = b""
        self.taken = []
        self.labels = {}
        self.level = 4  # of this link
        self.seen = []  # packets of the client: (first byte, body)
        self.faults = []
        self.connects = []
        self.answer_pings = self.answer = self.acknowledge = True
        self.lose_sessions = self.lost_unseen = self.down = False

    # The link

    def accept(self, wire):
        if self.wire and self.wire.alive:
            self.wire.break_now()
        self.wire = wire
        self.session = None
        self.rest = b""

    def lost(self, wire):
        if wire is self.wire:
            self.wire = self.session = None
            if self.lose_sessions:
                self.lose_sessions = False
                self.sessions = {}

    def feed(self, wire, data):
        if wire is not self.wire:
            return
        packets, self.rest = split_packets(self.rest + data)
        for head, body in packets:
            body = self._without_properties(head >> 4, head, body)
            self.seen.append((head, body))
            if self.answer:
                self._take(wire, head, body)

    def _without_properties(self, kind, head, body):
        if self.level != 5 or self.session is None or kind not in (PUBLISH, SUBSCRIBE, UNSUBSCRIBE):
            return body
        at = 2
        if kind == PUBLISH:
            at += (body[0] << 8 | body[1]) + (2 if head & 6 else 0)
        found, end = parse_properties(body, at)
        body = body[:at] + body[end:]
        if kind == PUBLISH:
            label = found.get("correlation_data")
            known = self.labels.setdefault(parse_publish(head, body)[2], [])
            if label not in known:
                known.append(label)
            body = self._with_topic(head, body, found.get("topic_alias"))
        return body

    def _with_topic(self, head, body, alias):
        end = 2 + (body[0] << 8 | body[1])
        if alias is None:
            return body
        if not 0 < alias <= self.aliases:
            self.fault("topic alias %d of %d" % (alias, self.aliases))
        if end > 2:
            self._names[alias] = body[2:end]
        elif head & 8 or alias not in self._names:
            self.fault("no topic name, with alias %d and DUP %d" % (alias, head & 8))
        else:
            self.aliased[0] += 1
        return string(self._names.get(alias, b"")) + body[end:]

    def fault(self, text):
        self.faults.append(text)

    def _take(self, wire, head, body):
        kind = head >> 4
        if head & 15 != (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0) and kind != PUBLISH:
            self.fault("flags of 0x%02x" % head)
        if kind == CONNECT:
            self._connect(wire, body)
        elif self.session is None:
            self.fault("packet type %d before CONNACK" % kind)
        elif kind == PUBLISH:
            self._publish(wire, head, body)
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            self._subscribe(wire, kind, body)
        elif kind == PINGREQ:
            if self.answer_pings:
                wire.send(b"\xd0\x00")
        elif kind == DISCONNECT:
            wire.fin = True
        elif kind == PUBREL:
            self._released(wire, body[0] << 8 | body[1])
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            self._acknowledged(wire, kind, body[0] << 8 | body[1])
        else:
            self.fault("packet type %d from a client" % kind)

    def _connect(self, wire, body):
        self.connects.append(body)
        if self.session:
            self.fault("a second CONNECT")
        i = 2 + (body[0] << 8 | body[1])  # the protocol level
        self.level = body[i]
        code = self.return_code or (1 if self.mqtt31 and body[i] != 3 else 0)
        if code:
            wire.send(bytes((0x20, 2, 0, code)))
            wire.fin = True
            return
        found, at = {}, i + 4
        if self.level == 5:
            found, at = parse_properties(body, at)
        n = body[at] << 8 | body[at + 1]
        client_id = body[at + 2 : at + 2 + n]
        clean = body[i + 1] & 2
        if clean:
            self.sessions.pop(client_id, None)
        present = client_id in self.sessions
        if not present:
            self.sessions[client_id] = BrokerSession(wire)
        self.session = self.sessions[client_id]
        if clean or self.level == 5 and not found.get("session_expiry_interval"):
            del self.sessions[client_id]
        self._acks = []  # what the client must acknowledge on this link, in order
        self._recs = []
        self._held = []
        self._rels = {}
        self._asked = []  # packet ids of requests whose answer the client has not read
        self._in_flight = []  # packet ids of its messages that are not acknowledged on this link
        self._names = {}  # topic names by the alias that the client has given them on this link
        self._allowed = found.get("topic_alias_maximum", 0)
        self._given = []  # topic names of this broker's aliases, 1 first
        limits = b""
        if self.level == 5:
            limits = properties(receive_maximum=_RECEIVE_MAXIMUM, topic_alias_maximum=self.aliases)
        wire.send(connack(present and not self.mqtt31, 0, limits), lambda: self._told(present))
        for message in self.session.queue:
            self._send(message)

    def _told(self, present):
        if self.session and not present and not self.mqtt31:
            self.session.told = True

    def _subscribe(self, wire, kind, body):
        packet_id = body[0] << 8 | body[1]
        if packet_id in self.session.in_use or packet_id in self._asked or not packet_id:
            self.fault("packet id %d of a request is in use" % packet_id)
        asked = self._asked
        asked.append(packet_id)
        n = body[2] << 8 | body[3]
        topic_filter = body[4 : 4 + n]
        if kind == UNSUBSCRIBE:
            self.session.subscriptions.pop(topic_filter, None)
            answer = b"\0\0" if self.level == 5 else b""
            wire.send(acknowledgement(11, packet_id, answer), lambda: asked.remove(packet_id))
        else:
            self.session.subscriptions[topic_filter] = body[4 + n]
            suback = encode(0x90, body[:2] + (b"\0" if self.level == 5 else b"") + bytes((body[4 + n],)))
            wire.send(suback, lambda: asked.remove(packet_id))

    # From the client

    def _publish(self, wire, head, body):
        topic, packet_id, payload = parse_publish(head, body)
        qos = head >> 1 & 3
        message = topic, payload
        if not qos:
            if head & 8:
                self.fault("DUP at QoS 0")
            self.taken.append(message)
            return
        self._check_id(wire, head, packet_id, message)
        session = self.session
        if qos == 1:
            self.taken.append(message)
            if self.acknowledge:
                self._done(packet_id)
                wire.send(acknowledgement(PUBACK, packet_id), lambda: session.in_use.pop(packet_id, None))
            return
        if packet_id not in session.inbound:
            session.inbound[packet_id] = message
            if not self.late:
                self.taken.append(message)
        if self.acknowledge:
            self._held.append(packet_id)
            if len(self._held) >= self.hold_recs:
                self.release_held()

    def _check_id(self, wire, head, packet_id, message):
        session = self.session
        known = session.in_use.get(packet_id)
        if not packet_id or packet_id in self._asked:
            self.fault("packet id %d is 0 or that of a request" % packet_id)
        if known is None:
            if head & 8 and session.born_on is wire:
                self.fault("DUP on a message that is new to this session")
            session.place.pop(packet_id, None)
        elif known[:2] != message:
            self.fault("packet id %d reused while in use" % packet_id)
        elif known[2] is wire:
            self.fault("packet id %d sent twice on a live link" % packet_id)
        elif not head & 8:
            self.fault("packet id %d sent again without DUP" % packet_id)
        session.in_use[packet_id] = message + (wire,)
        self._in_flight.append(packet_id)
        if self.level == 5 and len(self._in_flight) > _RECEIVE_MAXIMUM:
            self.fault("more messages in flight than the receive maximum")

    def _done(self, packet_id):
        if packet_id in self._in_flight:
            self._in_flight.remove(packet_id)

    def release_held(self):
        """Send the PUBRECs that were held back, in reverse order."""
        while self.wire and self.session and self._held:
            self.wire.send(acknowledgement(PUBREC, self._held[-1]), self._rec_arrives(self._held.pop()))

    def _rec_arrives(self, packet_id):
        session = self.session

        def arrived():
            session.places += 1
            session.place[packet_id] = session.places

        return arrived

    def _released(self, wire, packet_id):
        session = self.session
        place = session.place.get(packet_id)
        if place is None:
            if session.told and not self.lost_unseen:
                self.fault("PUBREL %d without PUBREC" % packet_id)
        elif self._rels and place < max(self._rels.values()):
            self.fault("PUBREL %d is not in the order of the PUBRECs" % packet_id)
        elif self._rels.get(packet_id) == place:
            self.fault("PUBREL %d twice on a live link" % packet_id)
        self._rels[packet_id] = place or 0
        message = session.inbound.pop(packet_id, None)
        if message and self.late:
            self.taken.append(message)
        if self.acknowledge:
            self._done(packet_id)
            wire.send(acknowledgement(PUBCOMP, packet_id), lambda: session.in_use.pop(packet_id, None))

    def _acknowledged(self, wire, kind, packet_id):
        for message in self.session.queue:  # acknowledgements come in its order: the first is soon found
            if message.packet_id == packet_id and message.sent:
                break
        else:
            if kind != PUBCOMP:  # PUBCOMP answers any PUBREL
                self.fault("acknowledgement %d of nothing, packet type %d" % (packet_id, kind))
            return
        if kind != PUBCOMP:
            waiting = self._acks if kind == PUBACK else self._recs
            if not waiting or waiting.pop(0) != packet_id:
                self.fault("packet type %d for %d is not in order of arrival" % (kind, packet_id))
        if kind == PUBREC:
            message.released = True
            wire.send(acknowledgement(PUBREL, packet_id))
        elif (kind == PUBACK) != (message.qos == 1) or kind == PUBCOMP and not message.released:
            self.fault("packet type %d for %d, which is at QoS %d" % (kind, packet_id, message.qos))
        else:
            self.session.queue.remove(message)

    # To the client

    def send(self, client_id, topic, payload, qos):
        """Send a message to the client, now or when it comes back; return False if it has no such subscription."""
        session = self.sessions.get(client_id) or self.session  # self.session is that of a clean session
        if not session or not [1 for one in session.subscriptions if _selects(one, topic)]:
            return False
        message = Outgoing(0, topic, payload, qos)
        if qos:
            session.last_id = message.packet_id = session.last_id % 65535 + 1
            session.queue.append(message)
        if self.session is session:
            self._send(message)
        return True

    def _send(self, message):
        if message.released:
            self.wire.send(acknowledgement(PUBREL, message.packet_id))
            return
        if message.qos:
            (self._acks if message.qos == 1 else self._recs).append(message.packet_id)
        label = b""
        topic = message.topic
        if self.level == 5:
            found = {"correlation_data": message.payload[:8]}
            if self._allowed:
                topic, found["topic_alias"] = self._alias(topic)
            label = properties(**found)
        self.wire.send(
            publish(topic, message.payload, message.qos, message.packet_id, dup=message.sent, properties=label)
        )
        message.sent = True

    def _alias(self, topic):
        # Returns the topic name to send and its alias. If all aliases are given, the first one gets a new meaning.
        if topic in self._given:
            self.aliased[1] += 1
            return b"", self._given.index(topic) + 1
        if len(self._given) < self._allowed:
            self._given.append(topic)
        else:
            self._given[0] = topic
        return topic, self._given.index(topic) + 1

    def forget(self, client_id):
        """Drop a session, as a broker without persistence does."""
        self.sessions.pop(client_id, None)
