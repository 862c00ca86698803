"""Compares topic filters: what a filter matches, what two filters both match, whether some filters cover another.

A filter or topic name is a tuple of its levels, as split() makes them. Filters must be valid. A filter that begins
with a wildcard matches no topic name that begins with $ [MQTT-4.7.2-1].
"""

from collections.abc import Iterator, Sequence

Levels = tuple[bytes, ...]


class TooHard(Exception):
    """The search was given up: is_covered() with filters full of `+` takes exponential time in the worst case."""


class Effort:
    """A limit for the work of is_covered(): how many filters it may look at before it gives up."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    def spend(self, looks: int) -> None:
        """Use up `looks` of the limit. Raises TooHard when it is exceeded."""
        self._left -= looks
        if self._left < 0:
            raise TooHard("too many ways to combine the filters")


def split(topic: bytes) -> Levels:
    """Return the levels of a topic name or filter."""
    return tuple(topic.split(b"/"))


def matches(topic_filter: Levels, topic_name: Levels) -> bool:
    """Tell whether a filter matches a topic name (4.7)."""
    count = len(topic_filter)
    if topic_filter[-1] == b"#":
        # `#` also stands for the parent level: a/# matches a (4.7.1.2).
        count -= 1
        if len(topic_name) < count:
            return False
    elif len(topic_name) != count:
        return False
    if topic_name[0][:1] == b"$" and topic_filter[0][:1] != b"$":
        return False
    for index in range(count):
        level = topic_filter[index]
        if level != topic_name[index] and level != b"+":
            return False
    return True


def intersection(one: Levels, other: Levels) -> Levels | None:
    """Return the filter that matches exactly the topic names that both match, None if there are none.

    One filter is always enough for that.
    """
    if one[0][:1] in (b"+", b"#"):
        one, other = other, one
    if one[0][:1] == b"$" and other[0][:1] != b"$":
        return None
    common: list[bytes] = []
    for index in range(max(len(one), len(other))):
        left, right = _level(one, index), _level(other, index)
        if left == b"#" or right == b"#":
            # From here on the filter without `#` decides; its end is matched by the `#` of the other.
            rest = other if left == b"#" else one
            common += rest[index:]
            break
        if left is None or right is None:
            return None
        if left == b"+":
            common.append(right)
        elif right in (b"+", left):
            common.append(left)
        else:
            return None
    # /# would match a name of one empty level, but there is no such topic name [MQTT-4.7.3-1].
    return None if common == [b""] else tuple(common)


def _level(levels: Levels, index: int) -> bytes | None:
    """Return a level, None past the end."""
    return levels[index] if index < len(levels) else None


def is_covered(topic_filter: Levels, others: Sequence[Levels], effort: Effort) -> bool:
    """Tell whether every topic name that `topic_filter` matches is matched by one of `others`.

    Searches, level by level, for a topic name that escapes them. Raises TooHard when that takes more than `effort`.
    """
    # A wildcard in the first level never matches a name that begins with $.
    is_dollar = topic_filter[0][:1] == b"$"
    pending = [(0, tuple(other for other in others if (other[0][:1] == b"$") == is_dollar))]
    seen: set[tuple[int, tuple[Levels, ...]]] = set()
    while pending:
        state = depth, alive = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        if not alive:
            return False
        effort.spend(len(alive))
        if any(other[-1] == b"#" and len(other) == depth + 1 for other in alive):
            continue  # this `#` matches whatever follows, also a name that ends here
        open_end = topic_filter[-1] == b"#" and depth >= len(topic_filter) - 1
        # No topic name is one empty level [MQTT-4.7.3-1].
        may_end = depth > (topic_filter[0] == b"") and (open_end or depth == len(topic_filter))
        if may_end and not any(len(other) == depth for other in alive):
            return False
        if open_end or depth < len(topic_filter):
            level = b"+" if open_end else topic_filter[depth]
            pending += [(depth + 1, rest) for rest in _branches(level, depth, alive)]
    return True


def _branches(level: bytes, depth: int, alive: Sequence[Levels]) -> Iterator[tuple[Levels, ...]]:
    """Yield the filters of `alive` that still match, for each name that the filter's `level` can stand for.

    depth: the index of that level. Names that make no difference to `alive` count as one.
    """
    named: dict[bytes, list[Levels]] = {}
    any_name: list[Levels] = []
    for other in alive:
        if len(other) > depth:
            if other[depth] == b"+":
                any_name.append(other)
            else:
                named.setdefault(other[depth], []).append(other)
    if level != b"+":
        yield (*any_name, *named.get(level, ()))
        return
    for others in named.values():
        yield (*any_name, *others)
    # The case of a name that none of the filters contains. It is yielded last because is_covered() tries the last one
    # first: most often it is the name that no filter matches.
    yield tuple(any_name)
