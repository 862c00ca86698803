"""Topic aliases from the broker to a client of MQTT 5 (its section 3.3.2.3.4)."""

from typing import Final

from ..protocol.packets import encode_publish_head, split_publish
from ..protocol.packets5 import add_properties
from ..protocol.properties import TOPIC_ALIAS, encode_one

# Bytes. The alias of a topic name takes 3 bytes, so it saves nothing for a name up to this length.
_SHORT: Final = 3


class TopicAliases:
    """The aliases of one connection, which end with it. Only its first `maximum` topic names get one.

    A message gets an alias only when it is written: messages that wait or are resent have their topic names.
    max_packet_size: the client's limit in bytes; 0: no limit.
    """

    __slots__ = ("_by_name", "_max_packet_size", "_maximum")

    def __init__(self, maximum: int, max_packet_size: int) -> None:
        self._maximum = maximum
        self._max_packet_size = max_packet_size
        self._by_name: dict[bytes, int] = {}

    def apply(self, data: bytes) -> bytes:
        """Return the PUBLISH packets in `data`, in which known aliases replace topic names and new ones are added."""
        written: list[bytes] = []
        at = 0
        while at < len(data):
            first_byte, topic_name, packet_id, content, end = split_publish(data, at)
            packet = data[at:end]
            at = end
            if len(topic_name) > _SHORT:
                alias = self._by_name.get(topic_name)
                if alias is not None:
                    packet = _encode(first_byte, b"", packet_id, content, alias)
                elif len(self._by_name) < self._maximum:
                    with_both = _encode(first_byte, topic_name, packet_id, content, len(self._by_name) + 1)
                    if not self._max_packet_size or len(with_both) <= self._max_packet_size:
                        self._by_name[topic_name] = len(self._by_name) + 1
                        packet = with_both
            written.append(packet)
        return b"".join(written)


def _encode(first_byte: int, topic_name: bytes, packet_id: bytes, content: bytes, alias: int) -> bytes:
    content = add_properties(content, encode_one(TOPIC_ALIAS, alias))
    return encode_publish_head(first_byte, topic_name, len(content)) + packet_id + content
