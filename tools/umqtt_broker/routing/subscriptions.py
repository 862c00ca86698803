"""The subscription trie: which subscribers a topic name reaches.

The trie is compressed: a node is where a filter ends or where filters branch, and the levels between two nodes are the
path of the lower one. So a filter takes one or two nodes, however many levels it has. Nodes that are no longer needed
are removed: clients that come and go leave nothing behind. Everything runs in the event loop's thread, so a subscribe
cannot race with the removal of an empty node.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Generic, TypeVar

Subscriber = TypeVar("Subscriber")

# Results of follow(): the path does not match; or it ends with # and matches whatever follows.
_NOWHERE = -1
_EVERYWHERE = -2


class _Node(Generic[Subscriber]):
    """A node of the trie. Below the root, each node has subscribers or several children.

    path: the levels between the parent and this node, without the first, which is the node's key in the parent's
    `children`. mask: for each level of the path (without a final #) whether it is not a `+`; None: the path has no `+`.

    The first subscriber has its own attributes, with its `qos`; only further ones are in the dictionary `others`. Most
    nodes have a single subscriber, for which a dictionary would be large.
    """

    __slots__ = ("children", "mask", "others", "path", "qos", "subscriber")

    def __init__(self, path: tuple[bytes, ...]) -> None:
        self.set_path(path)
        self.children: dict[bytes, _Node[Subscriber]] | None = None
        self.subscriber: Subscriber | None = None
        self.qos = 0
        self.others: dict[Subscriber, int] | None = None

    def set_path(self, path: tuple[bytes, ...]) -> None:
        """Set `path`, and `mask` from it."""
        self.path = path
        self.mask = bytes([level != b"+" for level in path if level != b"#"]) if b"+" in path else None

    def follow(self, levels: Sequence[bytes], at: int) -> int:
        """Compare the path with the levels of a topic name from index `at` on.

        Returns the index behind the compared levels, _NOWHERE or _EVERYWHERE. The path is compared as a whole, for
        speed: a filter may have 200 levels, and a topic name may be compared with thousands of filters.
        """
        path, mask = self.path, self.mask
        is_open = path[-1] == b"#"
        end = at + len(path) - is_open
        if end > len(levels):
            return _NOWHERE
        if mask is None:
            is_same = tuple(levels[at:end]) == (path[:-1] if is_open else path)
        else:
            is_same = tuple(compress(levels[at:end], mask)) == tuple(compress(path, mask))
        if not is_same:
            return _NOWHERE
        return _EVERYWHERE if is_open else end

    def add(self, subscriber: Subscriber, qos: int) -> bool:
        """Add a subscriber or replace its QoS. Returns True if it is new."""
        if self.subscriber is None or self.subscriber is subscriber:
            is_new = self.subscriber is None
            self.subscriber, self.qos = subscriber, qos
            return is_new
        if self.others is None:
            self.others = {}
        is_new = subscriber not in self.others
        self.others[subscriber] = qos
        return is_new

    def remove(self, subscriber: Subscriber) -> bool:
        """Remove a subscriber. Returns True if it was there."""
        others = self.others
        if self.subscriber is not subscriber:
            if others is None or others.pop(subscriber, None) is None:
                return False
        elif others:
            self.subscriber, self.qos = others.popitem()
        else:
            self.subscriber = None
        if not others:
            self.others = None
        return True

    def merge_into(self, found: dict[Subscriber, int]) -> None:
        """Add the subscribers to `found`, each with the higher QoS."""
        if self.subscriber is not None and found.get(self.subscriber, -1) < self.qos:
            found[self.subscriber] = self.qos
        if self.others is not None:
            for subscriber, qos in self.others.items():
                if found.get(subscriber, -1) < qos:
                    found[subscriber] = qos


class SubscriptionTrie(Generic[Subscriber]):
    """Topic filters by their levels. Filters must be valid; the trie does not check them again."""

    def __init__(self) -> None:
        self._root: _Node[Subscriber] = _Node(())

    def subscribe(self, topic_filter: bytes, subscriber: Subscriber, qos: int) -> bool:
        """Add or replace a subscription. Returns True if there was none before [MQTT-3.8.4-3]."""
        levels = topic_filter.split(b"/")
        node, at = self._root, 0
        while at < len(levels):
            level = levels[at]
            at += 1
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(tuple(levels[at:]))
                at = len(levels)
            elif child.path:
                same = _common(child.path, levels, at)
                at += same
                if same < len(child.path):
                    # The filters branch inside the path.
                    parting: _Node[Subscriber] = _Node(child.path[:same])
                    parting.children = {child.path[same]: child}
                    child.set_path(child.path[same + 1 :])
                    child = node.children[level] = parting
            node = child
        return node.add(subscriber, qos)

    def unsubscribe(self, topic_filter: bytes, subscriber: Subscriber) -> bool:
        """Remove a subscription and the nodes that nobody needs any more. Returns whether there was one."""
        levels = topic_filter.split(b"/")
        above: list[tuple[_Node[Subscriber], bytes]] = []
        node, at = self._root, 0
        while at < len(levels):
            level = levels[at]
            child = None if node.children is None else node.children.get(level)
            if child is None or _common(child.path, levels, at + 1) < len(child.path):
                return False
            above.append((node, level))
            at += 1 + len(child.path)
            node = child
        if not node.remove(subscriber):
            return False
        if node.subscriber is None:
            parent, level = above[-1]
            if not node.children:
                assert parent.children is not None  # the node is one of them
                del parent.children[level]
                if not parent.children:
                    parent.children = None
                # The node above may not be needed any more.
                above.pop()
                node = parent
            if above:
                _join(*above[-1], node)
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
            if depth == count:
                node.merge_into(found)
            children = node.children
            if children is None:
                continue
            wildcards = not (hidden and depth == 0)
            if wildcards and (rest := children.get(b"#")) is not None:
                # `#` also matches the parent level, so it is checked where the name ends, too.
                rest.merge_into(found)
            if depth == count:
                continue
            reached = [children.get(levels[depth]), children.get(b"+") if wildcards else None]
            for child in reached:
                if child is None:
                    continue
                end = child.follow(levels, depth + 1) if child.path else depth + 1
                if end == _EVERYWHERE:
                    child.merge_into(found)
                elif end != _NOWHERE:
                    pending.append((child, end))
        return list(found.items())

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def node_count(self) -> int:
        """Return the number of nodes below the root; 0 when nobody is subscribed."""
        return sum(1 for _ in self._nodes())

    def _nodes(self) -> Iterator[_Node[Subscriber]]:
        pending = [self._root]
        while pending:
            children = pending.pop().children
            if children is not None:
                yield from children.values()
                pending.extend(children.values())


def _common(path: tuple[bytes, ...], levels: Sequence[bytes], at: int) -> int:
    """Return how many levels at the beginning of a path equal the levels from index `at` on."""
    same = 0
    for one, other in zip(path, levels[at : at + len(path)], strict=False):
        if one != other:
            break
        same += 1
    return same


def _join(parent: _Node[Subscriber], level: bytes, node: _Node[Subscriber]) -> None:
    """Merge a node without subscribers with its only child."""
    if node.subscriber is None and node.children is not None and len(node.children) == 1:
        (below, child), *_ = node.children.items()
        child.set_path((*node.path, below, *child.path))
        assert parent.children is not None  # the node is one of them
        parent.children[level] = child
