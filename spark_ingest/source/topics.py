"""Topic filters [MQTT-4.7], for the option ``topics``."""

from collections.abc import Sequence

from ..errors import UsageError


def parse_filters(option: str) -> tuple[tuple[str, ...], ...]:
    """Split an option's value, topic filters separated by commas, into the levels of each filter.

    :raises UsageError: a filter is empty or has a misplaced wildcard.
    """
    return tuple(_levels(text.strip()) for text in option.split(","))


def _levels(topic_filter: str) -> tuple[str, ...]:
    levels = tuple(topic_filter.split("/"))
    misplaced = any(level not in ("#", "+") and ("#" in level or "+" in level) for level in levels)
    if not topic_filter or misplaced or "#" in levels[:-1]:
        raise UsageError(
            f"topics: {topic_filter!r} is not a topic filter: + stands for one whole level, # for all that follow"
        )
    return levels


def matches_any(filters: Sequence[Sequence[str]], topic_name: str) -> bool:
    """Return whether one of the filters matches the topic name."""
    levels = topic_name.split("/")
    return any(_matches(each, levels) for each in filters)


def _matches(topic_filter: Sequence[str], levels: list[str]) -> bool:
    # Wildcards at the first level do not match topics that begin with $ [MQTT-4.7.2-1].
    if levels[0].startswith("$") and topic_filter[0] in ("#", "+"):
        return False
    for i, wanted in enumerate(topic_filter):
        if wanted == "#":
            return True
        if i == len(levels) or wanted not in ("+", levels[i]):
            return False
    return len(topic_filter) == len(levels)
