"""Retained messages in a trie of topic levels: a subscription visits only the levels that its filter can match.

Made for a million messages. A topic name takes one entry in its parent's dictionary: its last level, and the message
packed into bytes. Only levels with others below them are objects, so the garbage collector has few objects to visit.
"""

import struct
from collections.abc import Iterator

from ..protocol.messages import RetainedMessage

# About how many bytes a topic level takes besides its name, and besides that a level with others below it.
_ENTRY_SIZE = 80
_NODE_SIZE = 300

# Flag in the first byte of a packed message, beside the QoS: it has properties or expires, so it begins with _HEAD.
_MORE = 4
_HEAD = struct.Struct(">BqI")


def _pack(message: RetainedMessage) -> bytes:
    """Return a message as bytes: its QoS and the payload; between them its expiry and properties, if it has any."""
    _, payload, qos, passed_on, expires_at = message
    if not passed_on and expires_at is None:
        return bytes((qos,)) + payload
    return _HEAD.pack(qos | _MORE, -1 if expires_at is None else expires_at, len(passed_on)) + passed_on + payload


def _unpack(topic_name: bytes, packed: bytes) -> RetainedMessage:
    if packed[0] < _MORE:
        return RetainedMessage(topic_name, packed[1:], packed[0])
    qos, expires_at, size = _HEAD.unpack_from(packed)
    at = _HEAD.size + size
    passed_on = packed[_HEAD.size : at]
    return RetainedMessage(topic_name, packed[at:], qos & 3, passed_on, None if expires_at < 0 else expires_at)


class _Node:
    """A level with levels below it. A level without any is not a node, but only its packed message: see _pack()."""

    __slots__ = ("children", "message")

    def __init__(self, message: bytes | None = None) -> None:
        self.children: dict[bytes, _Node | bytes] = {}
        self.message = message


class RetainedMessages:
    """The retained messages, one for each topic name.

    A message replaces the previous one; the router removes it for an empty payload [MQTT-3.3.1-5, -10].
    size: about how many bytes they take.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RetainedMessage]:
        """Yield every message, also of topic names that begin with `$`. Nothing may change meanwhile."""
        pending = [(b"", self._root)]
        while pending:
            prefix, node = pending.pop()
            for level, child in node.children.items():
                packed = child.message if isinstance(child, _Node) else child
                if packed is not None:
                    yield _unpack(prefix + level, packed)
                if isinstance(child, _Node):
                    pending.append((prefix + level + b"/", child))

    def node_count(self) -> int:
        """Return the number of topic levels that are kept; 0 without a message."""
        pending, count = [self._root], 0
        while pending:
            children = pending.pop().children.values()
            count += len(children)
            pending += [child for child in children if isinstance(child, _Node)]
        return count

    def put(self, message: RetainedMessage) -> None:
        """Keep `message` in place of the one its topic name had, if any."""
        children = self._root.children
        *path, last = message.topic_name.split(b"/")
        for level in path:
            child = children.get(level)
            if not isinstance(child, _Node):
                self.size += _NODE_SIZE + (0 if child is not None else _ENTRY_SIZE + len(level))
                child = children[level] = _Node(child)
            children = child.children
        packed = _pack(message)
        child = children.get(last)
        before = child.message if isinstance(child, _Node) else child
        self._count += before is None
        self.size += len(packed) - len(before or b"")
        if isinstance(child, _Node):
            child.message = packed
        else:
            if child is None:
                self.size += _ENTRY_SIZE + len(last)
            children[last] = packed

    def remove(self, topic_name: bytes) -> bool:
        """Forget the message of `topic_name` and the nodes it leaves empty. Returns whether there was one."""
        path: list[tuple[_Node, bytes]] = []
        child: _Node | bytes | None = self._root
        for level in topic_name.split(b"/"):
            if not isinstance(child, _Node):
                return False
            path.append((child, level))
            child = child.children.get(level)
        if child is None or (isinstance(child, _Node) and child.message is None):
            return False
        self._count -= 1
        if isinstance(child, _Node):
            self.size -= len(child.message or b"")
            child.message = None
            return True
        self.size -= len(child)
        while path:
            parent, level = path.pop()
            # Behind the last level, they are nodes that have lost all that was below them.
            self.size -= _ENTRY_SIZE + len(level) + (_NODE_SIZE if isinstance(parent.children[level], _Node) else 0)
            del parent.children[level]
            if parent.children:
                break
            if parent.message is not None:
                # The parent has no levels below it any more: only its message is kept.
                above, own_level = path.pop()
                above.children[own_level] = parent.message
                self.size -= _NODE_SIZE
                break
        return True

    def get(self, topic_name: bytes) -> RetainedMessage | None:
        """Return the message of a topic name, None if there is none."""
        child: _Node | bytes | None = self._root
        for level in topic_name.split(b"/"):
            if not isinstance(child, _Node):
                return None
            child = child.children.get(level)
        packed = child.message if isinstance(child, _Node) else child
        return None if packed is None else _unpack(topic_name, packed)

    def match(self, topic_filter: bytes) -> Iterator[RetainedMessage]:
        """Yield every retained message `topic_filter` matches. See walk() for what may change meanwhile."""
        return (message for message in self.walk(topic_filter) if message is not None)

    def walk(self, topic_filter: bytes) -> Iterator[RetainedMessage | None]:
        """Search for the messages that `topic_filter` matches in small steps. Each step yields a message or None.

        The trie may change between two steps. A message is yielded as it is when the walk reaches it; a message that is
        added where the walk has passed already is not yielded.
        """
        levels = topic_filter.split(b"/")
        count = len(levels)
        # What is still to be visited: a node, those of its levels that are wanted, how many levels of the filter are
        # used up by them (# is never used up), and the part of the topic name before them.
        pending = [(self._root, _wanted(self._root, levels[0], True), int(levels[0] != b"#"), b"")]
        while pending:
            node, wanted, depth, prefix = pending[-1]
            level = next(wanted, None)
            if level is None:
                pending.pop()
                continue
            child = node.children.get(level)
            found = None
            if child is not None:
                topic_name = prefix + level
                is_node = isinstance(child, _Node)
                packed = child.message if is_node else child
                if packed is not None and (depth == count or levels[depth] == b"#"):
                    found = _unpack(topic_name, packed)
                if is_node and depth < count:
                    below = depth + (levels[depth] != b"#")
                    pending.append((child, _wanted(child, levels[depth], False), below, topic_name + b"/"))
            yield found


def _wanted(node: _Node, level: bytes, is_first: bool) -> Iterator[bytes]:
    """Return the levels below `node` that a level of a filter reaches, as they are now."""
    if level not in (b"#", b"+"):
        return iter((level,))
    # Copying the keys alone takes a few milliseconds for a million of them.
    reached = list(node.children)
    if is_first:
        # [MQTT-4.7.2-1] a wildcard in the first level does not reach a topic name that begins with $.
        return (name for name in reached if not name.startswith(b"$"))
    return iter(reached)
