"""Retained messages in a trie of topic levels: a subscribe walks only what its filter can reach."""

from collections.abc import Iterator
from typing import NamedTuple


class RetainedMessage(NamedTuple):
    """The last message with the retain flag on one topic name."""

    topic_name: bytes
    payload: bytes
    qos: int


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.message: RetainedMessage | None = None


class RetainedMessages:
    """One message a topic name. Replaced by the next, removed by an empty payload [MQTT-3.3.1-5, -10]."""

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, message: RetainedMessage) -> None:
        """Keep `message` in place of the one its topic name had, if any."""
        node = self._root
        for level in message.topic_name.split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if node.message is None:
            self._count += 1
        node.message = message

    def remove(self, topic_name: bytes) -> bool:
        """Forget the message of `topic_name` and the nodes it leaves empty. Returns whether there was one."""
        path: list[tuple[_Node, bytes]] = []
        node = self._root
        for level in topic_name.split(b"/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return False
            node = child
        if node.message is None:
            return False
        node.message = None
        self._count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.message is not None:
                break
            del parent.children[level]
        return True

    def match(self, topic_filter: bytes) -> Iterator[RetainedMessage]:
        """Yield every retained message `topic_filter` matches. The trie must not change meanwhile."""
        levels = topic_filter.split(b"/")
        count = len(levels)
        pending = [(self._root, 0)]
        while pending:
            node, depth = pending.pop()
            if depth == count:
                if node.message is not None:
                    yield node.message
                continue
            level = levels[depth]
            if level == b"#":
                if node.message is not None:
                    yield node.message
                pending.extend((child, depth) for child in self._visible(node))
            elif level == b"+":
                pending.extend((child, depth + 1) for child in self._visible(node))
            elif (child := node.children.get(level)) is not None:
                pending.append((child, depth + 1))

    def _visible(self, node: _Node) -> Iterator[_Node]:
        """Yield the children a wildcard reaches: in the first level none that begins with $ [MQTT-4.7.2-1]."""
        if node is not self._root:
            yield from node.children.values()
            return
        for level, child in node.children.items():
            if not level.startswith(b"$"):
                yield child
