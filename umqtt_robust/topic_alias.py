"""Topic aliases of MQTT 5 (3.3.2.3.4): two bytes on the wire in place of a topic name that both ends know.

    client = Client("pump-7", "mqtt://broker.example", protocol=5)
    client.part("topic_alias")

To the broker: the topic names that were used last have aliases, as many as the broker and `most` allow.
From the broker: none, unless connect_properties={"topic_alias_maximum": 20} says how many it may use.

Aliases are valid on one link only. A message that is sent again carries its topic name in full.
"""

from ._platform import const
from .base_errors import LinkLost, ProtocolError
from .errors import InvalidArgument
from .mqtt5 import with_length
from .packets import DISCONNECT, DUP, QOS, decode_length, string

_SHORTEST = const(4)  # bytes of a topic name, so that no packet with an alias is longer than one without
_DEFINITION = const(16)  # bytes that a packet has at most beside topic name, properties and payload
_PROTOCOL_ERROR = const(0x82)
_TOPIC_ALIAS_INVALID = const(0x94)


class TopicAliases:
    """The aliases of one link.

    most: how many topic names to the broker have an alias, at most. max_bytes: limit for all topic names from the
    broker together; if they need more, the link ends, and the broker may use no aliases on later links.
    """

    most = 16
    max_bytes = 2048

    def __init__(self, session):
        if session.protocol == 4:
            raise InvalidArgument("topic aliases need protocol=5")
        self._session = session
        # Wraps two methods: of packets that are put, and of each PUBLISH that arrives.
        self._put = session.out.put
        session.out.put = self.put
        self._handle_publish = session._handle_publish
        session._handle_publish = self.handle_publish
        self.forget(False)

    def forget(self, session):
        """Drops all aliases: they were valid on the last link only."""
        self._sent = {}  # topic name: alias
        self._recent = []  # the same topic names, in the order of their last use
        self._received = {}  # alias: topic name

    def pump(self):
        return True

    def put(self, head, payload, topic=b"", packet_id=0, properties=b""):
        """Wraps SendBuffer.put(): uses or defines an alias. Only a packet that was put defines one."""
        granted = self._session.connack_properties
        most = min(self.most, granted.get("topic_alias_maximum", 0))
        alias = self._sent.get(topic)
        defines = not alias
        if defines:
            size = _DEFINITION + len(topic) + len(properties) + len(payload)
            if size <= granted.get("maximum_packet_size", size):
                full = len(self._sent) >= most
                alias = self._sent[self._recent[0]] if full and most else len(self._sent) + 1
        # No other packet than PUBLISH has properties here.
        if not most or not alias or not properties or head & DUP or len(topic) < _SHORTEST:
            return self._put(head, payload, topic, packet_id, properties)
        rest = properties[decode_length(properties, 0, len(properties))[1] :]
        properties = with_length(bytes((0x23, alias >> 8, alias & 255)) + rest)
        if not self._put(head, payload, topic if defines else b"", packet_id, properties):
            return False
        if not defines:
            self._recent.remove(topic)
        elif full:
            del self._sent[self._recent.pop(0)]
        self._sent[topic] = alias
        self._recent.append(topic)
        return True

    def handle_publish(self, head, buf, j, end):
        """Wraps Session._handle_publish(): puts the topic name in place of an alias."""
        session = self._session
        t = j + 2
        k = t + (buf[j] << 8 | buf[j + 1]) if t <= end else end
        p = k + 2 if head & QOS else k
        if not session.mqtt5 or p > end:
            return self._handle_publish(head, buf, j, end)
        session.mqtt5.handle_publish(buf, t, k, p, end)
        topic = self.resolve(bytes(buf[t:k]), session.properties)
        if k > t or not topic:
            return self._handle_publish(head, buf, j, end)
        packet = string(topic) + bytes(buf[k:end])
        session._view = memoryview(packet)
        try:
            return self._handle_publish(head, packet, 0, len(packet))
        finally:
            session._view = memoryview(buf)

    def resolve(self, topic, properties):
        """Returns the topic name of a PUBLISH. topic: as received, empty with an alias alone. Raises ProtocolError."""
        alias = properties.get("topic_alias")
        if alias is None:
            return topic
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
        if sum([len(name) for name in self._received.values()]) - len(known) + len(topic) <= self.max_bytes:
            self._received[alias] = topic
        else:
            session.connect_properties = dict(session.connect_properties, topic_alias_maximum=0)
            session.broken = LinkLost("topic aliases need more than max_bytes")
        return topic

    def _refuse(self, reason):
        self._session.out.put(DISCONNECT, bytes((reason,)))
        raise ProtocolError("topic alias")


part = TopicAliases  # what Session.part() makes
