"""Maps topic names to those at the other end of a bridge, by mosquitto's rules."""

from collections.abc import Callable, Iterable

from umqtt_robust.topics import matches

from ..protocol.topics import MAX_LENGTH, MAX_REMEMBERED, is_topic_name
from ..settings.bridge import TopicRule

# Names kept in the cache. A full cache is emptied, since a client may invent a new name for every message.
_MAX_KNOWN = 4096


class TopicMap:
    """Maps topic names of one end to topic names of the other; b"" if no rule selects a name or it cannot be mapped.

    Among the rules that select a name, the first with a prefix counts: one end's prefix is replaced by the other's. If
    no such rule has a prefix, the name stays as it is. get(): looks only into the cache; None: use find().
    """

    def __init__(self, rules: Iterable[TopicRule], outward: bool) -> None:
        self._rules = [
            (rule.local_filter, rule.local_prefix, rule.remote_prefix)
            if outward
            else (rule.remote_filter, rule.remote_prefix, rule.local_prefix)
            for rule in rules
            if (rule.goes_out if outward else rule.comes_in)
        ]
        self._known: dict[bytes, bytes] = {}
        self.get: Callable[[bytes], bytes | None] = self._known.get

    def find(self, topic_name: bytes) -> bytes:
        """Return the name at the other end, b"" for none, and keep it in the cache."""
        mapped = self._map(topic_name)
        if len(topic_name) <= MAX_REMEMBERED:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[topic_name] = mapped
        return mapped

    def _map(self, topic_name: bytes) -> bytes:
        mapped = b""
        if is_topic_name(topic_name):
            for topic_filter, prefix, other_prefix in self._rules:
                if matches(topic_filter, topic_name):
                    if prefix or other_prefix:
                        mapped = other_prefix + topic_name.removeprefix(prefix)
                        break
                    mapped = topic_name
        return mapped if len(mapped) <= MAX_LENGTH else b""
