"""The subscription trie: which subscribers a topic name reaches.

Nodes exist only while they or a node below them hold a subscriber, so a fleet that comes and goes leaves
nothing behind. Everything runs in the event loop's thread: no subscribe can race with the removal of an empty
node.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Subscriber = TypeVar("Subscriber")


class _Node(Generic[Subscriber]):
    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[Subscriber]] = {}
        self.subscribers: dict[Subscriber, int] = {}


class SubscriptionTrie(Generic[Subscriber]):
    """Topic filters, one level a node. Filters must be valid; the trie does not check them again."""

    def __init__(self) -> None:
        self._root: _Node[Subscriber] = _Node()

    def subscribe(self, topic_filter: bytes, subscriber: Subscriber, qos: int) -> bool:
        """Add or replace a subscription. Returns True if there was none before [MQTT-3.8.4-3]."""
        node = self._root
        for level in topic_filter.split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        is_new = subscriber not in node.subscribers
        node.subscribers[subscriber] = qos
        return is_new

    def unsubscribe(self, topic_filter: bytes, subscriber: Subscriber) -> bool:
        """Remove a subscription and the nodes it leaves empty. Returns whether there was one."""
        path: list[tuple[_Node[Subscriber], bytes]] = []
        node = self._root
        for level in topic_filter.split(b"/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return False
            node = child
        if node.subscribers.pop(subscriber, None) is None:
            return False
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.subscribers:
                break
            del parent.children[level]
        return True

    def match(self, topic_name: bytes) -> list[tuple[Subscriber, int]]:
        """Return each subscriber once with the highest QoS of its matching filters [MQTT-3.3.5-1]."""
        levels = topic_name.split(b"/")
        count = len(levels)
        found: dict[Subscriber, int] = {}
        # [MQTT-4.7.2-1] a wildcard in the first level does not match a topic name that begins with $.
        hidden = topic_name.startswith(b"$")
        pending = [(self._root, 0)]
        while pending:
            node, depth = pending.pop()
            children = node.children
            wildcards = not (hidden and depth == 0)
            if wildcards and (rest := children.get(b"#")) is not None:
                # `#` also matches the parent level, so it is looked at before the end of the name is.
                _merge(found, rest.subscribers)
            if depth == count:
                _merge(found, node.subscribers)
                continue
            if (exact := children.get(levels[depth])) is not None:
                pending.append((exact, depth + 1))
            if wildcards and (any_level := children.get(b"+")) is not None:
                pending.append((any_level, depth + 1))
        return list(found.items())

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def node_count(self) -> int:
        """Return the number of nodes below the root; 0 when nobody is subscribed."""
        return sum(1 for _ in self._nodes())

    def _nodes(self) -> Iterator[_Node[Subscriber]]:
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())


def _merge(found: dict[Subscriber, int], subscribers: dict[Subscriber, int]) -> None:
    for subscriber, qos in subscribers.items():
        if found.get(subscriber, -1) < qos:
            found[subscriber] = qos
