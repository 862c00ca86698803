"""MQTT 5: what it adds to MQTT 3.1.1, for Client(protocol=5).

The session is the same. This module encodes and decodes what version 5 adds to the packets, properties and reason
codes, and maps it to what the core knows: a smaller window, a refusal, a lost link.

Properties are a dictionary: {"content_type": "text/plain", "user_property": [("site", "north")]}. Names are those of
the standard (2.2.2.2) in lower case; a value is an int, str or bytes; received text is bytes. A property that
may occur more than once is a list; a user property is a pair.

In the outbox, and where messages wait, the properties of a message follow its topic name and a NUL, which no topic name
may contain [MQTT-1.5.4-2].

    mqtt5 = client.part("mqtt5")
    mqtt5.most_aliases = 16
    mqtt5.set_options("fleet/#", no_local=True, identifier=7)

A topic alias (3.3.2.3.4) is two bytes on the wire in place of a topic name that both ends know. It is valid on one link
only; a message that is sent again carries its topic name in full. Options of subscriptions: 3.8.2.1.2, 3.8.3.1.
"""

from ._platform import NEVER, const, load
from .base_errors import LinkLost, ProtocolError
from .errors import Downgraded, InvalidArgument, Refused
from .packets import (
    AWAIT_PUBCOMP,
    CONNACK,
    DISCONNECT,
    DUP,
    LINK_5,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS,
    QOS_2,
    RETAIN,
    STATE,
    SUBACK,
    UNSUBACK,
    UP,
    decode_length,
    string,
)

# Where a property may stand, in packets that this client sends
_CONNECT = const(1)
_WILL = const(2)
_PUBLISH = const(4)
# and in those that it receives.
_CONNACK = const(8)
_MESSAGE = const(16)
_ANSWER = const(32)  # PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK
_DISCONNECT = const(64)
_EVERYWHERE = const(255)

# Kinds of values (1.5); a positive one is a number of so many bytes.
_VARIABLE = const(0)
_TEXT = const(-1)
_BINARY = const(-2)
_PAIR = const(-3)

# Name, identifier, kind, places: table 2-4 of the standard. Lists, because a tuple of constants would put a copy of
# each name into the .mpy, beside the one that the code below uses.
_TABLE = (
    ["payload_format_indicator", 0x01, 1, _WILL | _PUBLISH | _MESSAGE],
    ["message_expiry_interval", 0x02, 4, _WILL | _MESSAGE],  # of a PUBLISH: expires_in
    ["content_type", 0x03, _TEXT, _WILL | _PUBLISH | _MESSAGE],
    ["response_topic", 0x08, _TEXT, _WILL | _PUBLISH | _MESSAGE],
    ["correlation_data", 0x09, _BINARY, _WILL | _PUBLISH | _MESSAGE],
    ["subscription_identifier", 0x0B, _VARIABLE, _MESSAGE],
    ["session_expiry_interval", 0x11, 4, _CONNECT | _CONNACK],
    ["assigned_client_identifier", 0x12, _TEXT, _CONNACK],
    ["server_keep_alive", 0x13, 2, _CONNACK],
    ["will_delay_interval", 0x18, 4, _WILL],
    ["server_reference", 0x1C, _TEXT, _CONNACK | _DISCONNECT],
    ["reason_string", 0x1F, _TEXT, _CONNACK | _ANSWER | _DISCONNECT],
    ["receive_maximum", 0x21, 2, _CONNECT | _CONNACK],
    ["topic_alias_maximum", 0x22, 2, _CONNECT | _CONNACK],
    ["topic_alias", 0x23, 2, _MESSAGE],
    ["maximum_qos", 0x24, 1, _CONNACK],
    ["retain_available", 0x25, 1, _CONNACK],
    ["user_property", 0x26, _PAIR, _EVERYWHERE],
    ["maximum_packet_size", 0x27, 4, _CONNECT | _CONNACK],
    # Whether the broker has wildcards, subscription identifiers and shared subscriptions. It refuses what it does not
    # have, so the client needs no names for these: their numbers are their names.
    [0x28, 0x28, 1, _CONNACK],
    [0x29, 0x29, 1, _CONNACK],
    [0x2A, 0x2A, 1, _CONNACK],
)
_NOT_ZERO = const(b"\x21\x27")  # identifiers of numbers
_REPEAT = ("user_property", "subscription_identifier")

# First bytes of the packets that have a reason code here, besides DISCONNECT (LINK_5).
_HEADS = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)

# Reason codes (2.4) with a meaning of their own here; of others only success (below 0x80) or failure counts.
_REFUSED = const(0x80)
_NO_SUBSCRIPTION_EXISTED = const(0x11)
_OLD = const(1)  # the return code of a broker that knows nothing newer than MQTT 3.1.1
_UNSUPPORTED_VERSION = const(0x84)
# Refusals of CONNECT that may be over soon: unavailable, busy, quota exceeded, another server, too many connections.
_PASSING = const(b"\x88\x89\x97\x9c\x9d\x9f")
_QUOTA_EXCEEDED = const(0x97)

_SHORTEST = const(4)  # bytes of a topic name, so that no packet with an alias is longer than one without
_DEFINITION = const(16)  # bytes that a packet has at most beside topic name, properties and payload
_PROTOCOL_ERROR = const(0x82)
_TOPIC_ALIAS_INVALID = const(0x94)
_HIGHEST_IDENTIFIER = const(268435455)
_IDENTIFIERS_AVAILABLE = const(0x29)

_MOST_INBOUND = const(64)  # messages that the broker may send unacknowledged; qos2.py keeps as many


def variable(n):
    """Encodes a variable byte integer (1.5.5)."""
    encoded = b""
    while n > 127:
        encoded += bytes((n & 127 | 128,))
        n >>= 7
    return encoded + bytes((n,))


def with_length(block):
    """Returns bytes with their length, a variable byte integer, before them."""
    return variable(len(block)) + block


def encode(properties, place):
    """Encodes properties, a dictionary or None, with their length before them.

    place: the packet that they are for, such as _PUBLISH. Raises InvalidArgument.
    """
    block = b""
    for name in properties or ():
        try:
            for known, identifier, kind, places in _TABLE:
                if known == name and places & place:
                    for value in properties[name] if name in _REPEAT else (properties[name],):
                        block += bytes((identifier,)) + _encode_value(kind, value)
                        if _is_forbidden(identifier, kind, value):
                            raise ValueError
                    if name == "response_topic":
                        load("topics").check_topic_name(value)
                    break
            else:
                raise ValueError
        except (TypeError, ValueError, InvalidArgument):
            raise InvalidArgument("bad property " + name)
    return with_length(block)


def _is_forbidden(identifier, kind, value):
    # All properties of one byte are 0 or 1, and some others must not be 0. What a broker sends is taken as it is: a
    # message that closes the link would come again on the next one.
    return value > 1 if kind == 1 else not value and identifier in _NOT_ZERO


def _encode_value(kind, value):
    if kind == _PAIR:
        name, value = value
        return _encode_value(_TEXT, name) + _encode_value(_TEXT, value)
    if kind <= 0:
        value = load("topics").check_utf8(value, "property") if kind == _TEXT else b"" + value
        return _encode_value(2, len(value)) + value
    if not 0 <= value < 1 << 8 * kind:
        raise ValueError
    return value.to_bytes(kind, "big")


def decode(buf, i, end, place):
    """Decodes the properties at buf[i] of a packet that ends at `end`. Returns (dictionary, index of what follows).

    place: the packet that they are in, such as _MESSAGE. Raises ProtocolError.
    """
    properties = {}
    length, i = decode_length(buf, i, end) or (end + 1, i)
    stop = i + length
    while i < stop <= end:
        for name, identifier, kind, places in _TABLE:
            if identifier == buf[i] and places & place:
                break
        else:
            break
        i += 1
        if kind > 0:
            value = int.from_bytes(buf[i : i + kind], "big")
            i += kind
        elif kind == _VARIABLE:
            value, i = decode_length(buf, i, stop) or (0, stop + 1)
        else:
            value, i = _decode_field(buf, i)
            if kind == _PAIR:
                second, i = _decode_field(buf, i)
                value = value, second
        if name in _REPEAT:
            properties.setdefault(name, []).append(value)  # in place: a broker may send very many
        elif name in properties:
            i = stop + 1
        else:
            properties[name] = value
    if i != stop or stop > end:
        raise ProtocolError("malformed")
    return properties, i


def _decode_field(buf, i):
    # Slices beyond the end are short; the caller checks the index.
    end = i + 2 + int.from_bytes(buf[i : i + 2], "big")
    return bytes(buf[i + 2 : end]), end


class Mqtt5:
    """The codec of one session, and what its link has agreed on.

    most_aliases: how many topic names to the broker have an alias, at most; those that were used last, and no more than
    the broker allows. max_alias_bytes: limit for all topic names from the broker together that have one; the broker may
    use as many as connect_properties={"topic_alias_maximum": ...} says. If they need more bytes, the link ends, and the
    broker may use no aliases on later links.
    """

    most_aliases = 0
    max_alias_bytes = 2048

    def __init__(self, session):
        self._session = session
        self._options = {}  # topic filter: options beside QoS, identifier or 0
        self._configured = session.window, session.keep_alive_ms, session.ping_after
        self._old = []  # names of brokers that know nothing newer than MQTT 3.1.1
        session.properties = session.connack_properties = {}
        if session.protocol not in (5, "auto"):
            raise InvalidArgument("protocol is 4, 5 or auto; properties need 5")
        self.connect_properties()
        self.forget(False)

    def forget(self, session):
        """Drops all aliases: they were valid on the last link only. open() resets the rest for the next one."""
        self._sent = {}  # topic name: alias
        self._recent = []  # the same topic names, in the order of their last use
        self._received = {}  # alias: topic name

    def pump(self):
        """Sends queued messages at QoS 0 to a broker that takes no others. Returns False if there is no room."""
        session = self._session
        outbox = session.outbox
        while session.mqtt5 and session.connack_properties.get("maximum_qos") == 0 and outbox.next_unsent():
            packet_id = outbox.next_unsent()
            slot = outbox.slot_of[packet_id]
            flags = outbox.flags[slot] & 15
            if flags & QOS:  # it waits for another broker
                break
            topic, payload = outbox.store.load(slot)
            if not topic or self.is_too_large(flags, topic, 0, payload):
                session.part("policy").drop_unsendable(packet_id)
            elif not session._send(PUBLISH | flags, topic, packet_id, payload, False):
                return False
            else:
                session.remove(packet_id)
        return True

    # Sending

    def open(self):
        """Chooses the protocol version of a new link.

        Returns what connect_properties() returns, or None for a link of MQTT 3.1.1. Raises InvalidArgument.
        """
        session = self._session
        session.window, session.keep_alive_ms, session.ping_after = self._configured
        session.level = min(session.level, 4) if session.broker in self._old else 5
        session.mqtt5 = self if session.level == 5 else None
        session.connack_properties = {}
        return session.mqtt5 and self.connect_properties()

    def connect_properties(self):
        """Returns the properties of CONNECT and those of its will, encoded. Raises InvalidArgument."""
        session = self._session
        properties = dict(session.connect_properties or {})
        if session.purge:
            properties["session_expiry_interval"] = 0
        elif not session.clean_session:
            properties.setdefault("session_expiry_interval", 0xFFFFFFFF)  # for ever, as in MQTT 3.1.1
        # As many messages as can be kept until they are handed over, in RAM or in the store.
        properties.setdefault("receive_maximum", min(_MOST_INBOUND, session.outbox.store.slots))
        return encode(properties, _CONNECT), encode((session.will or (None,))[-1], _WILL)

    def publish(self, topic, payload, qos, expires_in, properties):
        """Returns the topic name of a message, followed by its properties. Raises InvalidArgument."""
        session = self._session
        block = encode(properties, _PUBLISH)
        if expires_in is not None and not qos:
            load("checks").publish(0, qos, expires_in)
            block = _with_lifetime(block, (expires_in + 999) // 1000)
        if block != b"\0":
            topic += b"\0" + block
        if len(topic) > 65535 or session.connected and self.is_too_large(qos << 1, topic, 0, payload):
            raise InvalidArgument("larger than the broker takes")
        return topic

    def put(self, head, payload, topic, packet_id):
        """Encodes a message into the send buffer, with an alias if it has one. Returns False if there is no room."""
        out = self._session.out
        head, topic, block = self._load(head, topic, packet_id)
        if not head & QOS:
            packet_id = 0
        alias = self._choose_alias(head, topic, block, payload)
        if not alias:
            return out.put(head, payload, topic, packet_id, block)
        is_known = topic in self._sent
        block = with_length(bytes((0x23, alias >> 8, alias & 255)) + _without_length(block))
        if not out.put(head, payload, b"" if is_known else topic, packet_id, block):
            return False  # only a packet that was put defines an alias
        if is_known:
            self._recent.remove(topic)
        elif alias <= len(self._sent):
            del self._sent[self._recent.pop(0)]
        self._sent[topic] = alias
        self._recent.append(topic)
        return True

    def _choose_alias(self, head, topic, block, payload):
        # Returns the alias that a message uses or defines; 0: none.
        granted = self._session.connack_properties
        most = min(self.most_aliases, granted.get("topic_alias_maximum", 0))
        if not most or head & DUP or len(topic) < _SHORTEST:
            return 0
        if topic in self._sent:
            return self._sent[topic]
        size = _DEFINITION + len(topic) + len(block) + len(payload)
        if size > granted.get("maximum_packet_size", size):
            return 0
        return self._sent[self._recent[0]] if len(self._sent) >= most else len(self._sent) + 1

    def _load(self, head, topic, packet_id):
        # Returns (first byte, topic name, properties) of a PUBLISH, as they are sent on this link without an alias.
        session = self._session
        topic, _, block = topic.partition(b"\0")
        limits = session.parts.get("limits")
        lifetime = limits and limits.lifetime(packet_id)
        block = block or b"\0"
        if lifetime:
            block = _with_lifetime(block, lifetime)
        if head & QOS_2 and session.connack_properties.get("maximum_qos") == 1:
            head ^= QOS  # QoS 1: PUBACK ends it, as with a broker that takes QoS 2 for QoS 1
        if head & RETAIN and session.connack_properties.get("retain_available") == 0:
            head ^= RETAIN
        return head, topic, block

    def is_too_large(self, head, topic, packet_id, payload):
        """Returns True if a PUBLISH is larger than the broker of this link accepts."""
        head, topic, block = self._load(head, topic, packet_id)
        n = len(topic) + len(block) + len(payload) + (4 if head & QOS else 2)
        n += 2 if n < 128 else 3 if n < 16384 else 4 if n < 2097152 else 5
        return n > self._session.connack_properties.get("maximum_packet_size", n)

    def set_options(self, topic_filter, no_local=False, retain_as_published=False, retain_handling=0, identifier=0):
        """Sets the options of the subscription to a topic filter, from the next SUBSCRIBE on.

        no_local: the broker does not send what this client publishes itself. retain_as_published: RETAIN stays as the
        publisher set it. retain_handling: the broker sends retained messages 0: at each SUBSCRIBE, 1: only if the
        subscription is new, 2: never. identifier: 1 to 268435455, 0 for none; in a handler,
        client.properties["subscription_identifier"] lists the identifiers of the subscriptions that match the message.
        Raises InvalidArgument.
        """
        topic_filter = load("topics").check_topic_filter(topic_filter)
        if retain_handling not in (0, 1, 2) or not isinstance(identifier, int):
            raise InvalidArgument("retain_handling is 0, 1 or 2, and identifier a number")
        if not 0 <= identifier <= _HIGHEST_IDENTIFIER or no_local and topic_filter[:7] == b"$share/":
            # [MQTT-3.8.3-4]
            raise InvalidArgument("an identifier is at most 268435455, and a shared subscription not no_local")
        bits = (4 if no_local else 0) | (8 if retain_as_published else 0) | retain_handling << 4
        self._options[topic_filter] = bits, identifier

    def subscribe(self, body, topic_filter):
        """Returns `body`, of a SUBSCRIBE or UNSUBSCRIBE without its fixed header, with what MQTT 5 adds."""
        block = b"\0"
        if len(body) > 4 + len(topic_filter):  # SUBSCRIBE
            bits, identifier = self._options.get(topic_filter, (0, 0))
            body = body[:-1] + bytes((body[-1] | bits,))
            if identifier and self._session.connack_properties.get(_IDENTIFIERS_AVAILABLE) == 0:
                self._session.report(Downgraded("the broker takes no subscription identifiers"))
            elif identifier:
                block = with_length(b"\x0b" + variable(identifier))
        return body[:2] + block + body[2:]

    # Receiving

    def handle_publish(self, head, buf, t, k, p, end):
        """Reads the properties of a PUBLISH at buf[p]; buf[t:k] is its topic name. Raises ProtocolError.

        Returns (index of its payload, bytes to keep after the topic name if the message has to wait). Or (what
        Session._handle_publish() is to return, None): NUL in the topic name, or an alias in place of one.
        """
        session = self._session
        topic, i = self.read_properties(bytes(buf[t:k]), buf, p, end)
        if b"\0" in topic:
            session.part("malformed").refuse(head, buf[p - 2] << 8 | buf[p - 1] if head & QOS else 0, topic)
            return True, None
        if k == t and topic:
            packet = string(topic) + bytes(buf[k:end])
            session._view = memoryview(packet)
            try:
                return session._handle_publish(head, packet, 0, len(packet)), None
            finally:
                session._view = memoryview(buf)
        return i, b"\0" + bytes(buf[p:i]) if i > p + 1 else b""

    def read_properties(self, topic, buf, p, end):
        """Reads the properties of a PUBLISH at buf[p]. topic: as received, empty with an alias alone.

        Returns (topic name, index of the payload). Raises ProtocolError.
        """
        session = self._session
        session.properties, i = decode(buf, p, end, _MESSAGE)
        alias = session.properties.get("topic_alias")
        return topic if alias is None else self._resolve(topic, alias), i

    def _resolve(self, topic, alias):
        session = self._session
        if session.broken:
            raise session.broken
        if not 0 < alias <= (session.connect_properties or {}).get("topic_alias_maximum", 0):
            self._refuse(_TOPIC_ALIAS_INVALID)
        known = self._received.get(alias, b"")
        if not topic:
            if not known:
                self._refuse(_PROTOCOL_ERROR)
            return known
        if sum([len(name) for name in self._received.values()]) - len(known) + len(topic) <= self.max_alias_bytes:
            self._received[alias] = topic
        else:
            session.connect_properties = dict(session.connect_properties, topic_alias_maximum=0)
            session.broken = LinkLost("topic aliases need more than max_alias_bytes")
        return topic

    def _refuse(self, reason):
        self._session.out.put(DISCONNECT, bytes((reason,)))
        raise ProtocolError("topic alias")

    def hand_over(self, topic):
        """Sets the properties of a kept message that is handed over. Returns its topic name."""
        topic, _, block = topic.partition(b"\0")
        self._session.properties = decode(block or b"\0", 0, len(block) or 1, _MESSAGE)[0]
        return topic

    def receive(self, head, buf, j, length):
        """Handles what MQTT 5 adds to any packet but PUBLISH.

        Returns the length that the packet has in MQTT 3.1.1, or None if it is completely handled. Raises LinkLost and
        StoreError.
        """
        session = self._session
        closes = session.state << 8 | head in LINK_5
        if not closes and ((session.state == UP) == (head == CONNACK) or head not in _HEADS):
            return length  # the core handles it, or rejects it
        answers_filter = head == SUBACK or head == UNSUBACK
        i = j if closes else j + 1 if head == CONNACK else j + 2
        end = j + length
        reason = -1  # there is none
        properties = {}
        if answers_filter:
            properties, i = decode(buf, i, end, _ANSWER)
        if i < end:
            reason = buf[i]
            i += 1
        if i < end and not answers_filter:
            place = _CONNACK if head == CONNACK else _DISCONNECT if closes else _ANSWER
            properties, i = decode(buf, i, end, place)
        elif head == CONNACK and reason != _OLD:
            i = -1
        if i != end or reason < 0 and answers_filter:
            raise ProtocolError("malformed")
        told = [properties.get("reason_string", b"")]
        if "server_reference" in properties:
            told.append(properties["server_reference"])
        if head == CONNACK:
            self._handle_connack(buf[j], reason, properties, told)
            return None
        reason = max(reason, 0)
        if closes:
            raise Refused("disconnect", reason, *told)
        packet_id = buf[j] << 8 | buf[j + 1]
        if answers_filter:
            session.subscriptions.handle_answer(packet_id, 0 if reason == _NO_SUBSCRIPTION_EXISTED else reason, told)
        elif reason >= _REFUSED and (head == PUBACK or head == PUBREC):
            self._handle_refusal(packet_id, reason, told)
        elif head == PUBACK:
            session.handle_puback(packet_id)
        else:
            return 2
        return None

    def _handle_connack(self, session_present, reason, properties, told):
        session = self._session
        if session_present > 1 or session_present and reason:  # [MQTT-3.2.2-6]
            raise ProtocolError("malformed")
        if reason:
            if (reason == _OLD or reason == _UNSUPPORTED_VERSION) and session.protocol == "auto":
                self._old.append(session.broker)
                session.level = 4
                session.retry_delay = 0
            elif reason not in _PASSING:
                session.retry_delay = NEVER
            raise Refused("connect", reason, *told)
        session.connack_properties = properties
        if "server_keep_alive" in properties:
            session.keep_alive_ms = properties["server_keep_alive"] * 1000
            session.ping_after = 0
        session.client_id = properties.get("assigned_client_identifier", session.client_id)
        session.window = min(session.window, properties.get("receive_maximum", session.window))
        if not session.window or properties.get("maximum_packet_size") == 0:
            raise ProtocolError("malformed")
        if properties.get("maximum_qos") == 0:
            session.window = 0  # messages at QoS 1 and 2 wait for another broker
            session.report(Downgraded("the broker takes QoS 0 alone"))
        if properties.get("retain_available") == 0:
            session.report(Downgraded("the broker keeps no retained messages"))
        session.handle_connack(session_present, 0)

    def _handle_refusal(self, packet_id, reason, told):
        # By PUBACK or PUBREC the broker refuses a message.
        session = self._session
        outbox = session.outbox
        slot = outbox.slot_of.get(packet_id)
        flags = outbox.flags[slot] if slot is not None else 0
        if not flags & DUP or flags & STATE == AWAIT_PUBCOMP:
            session.unexpected += 1
            return
        session.refused = refused = Refused("publish", outbox.store.load(slot)[0].split(b"\0")[0], reason, *told)
        if reason == _QUOTA_EXCEEDED:
            raise refused  # temporary: the message is sent again on another link
        session.report(refused)
        session.part("policy").drop(packet_id, load("policy").REFUSED)


def _without_length(block):
    return block[decode_length(block, 0, len(block))[1] :]


def _with_lifetime(block, seconds):
    # Returns the properties with this message expiry interval first, in place of an earlier one.
    block = _without_length(block)
    if block[:1] == b"\2":
        block = block[5:]
    return with_length(b"\2" + min(seconds, 0xFFFFFFFF).to_bytes(4, "big") + block)


part = Mqtt5  # what Session.part() makes
