"""Topic patterns of rules: topic filters in which levels have a meaning, which docs/decoders.md lists."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_ONE = {"{device}": "device", "{metric}": "metric", "+": "metric", "{any}": "any", "$+": "metric"}
_MANY = {"{device...}": "device", "{metric...}": "metric", "{any...}": "any", "#": "metric"}


class Pattern(NamedTuple):
    """A topic pattern.

    :ivar meanings: what each group of `regex` is part of.
    """

    regex: re.Pattern[str]
    meanings: tuple[str, ...]

    def match(self, topic: str) -> tuple[str | None, str | None] | None:
        """Return the device and the metric's levels in a topic, None where it has none; None if it does not match."""
        found = self.regex.fullmatch(topic)
        if found is None:
            return None
        device: list[str] = []
        metric: list[str] = []
        for meaning, text in zip(self.meanings, found.groups(), strict=True):
            if text is not None and meaning != "any":
                # Else a level that ends with a backslash would look like the beginning of a field's name with a slash.
                (device if meaning == "device" else metric).append(
                    text if meaning == "device" else text.replace("\\", "\\\\")
                )
        return "/".join(device) if device else None, "/".join(metric) if metric else None


def is_pattern(topic: str) -> bool:
    """Return whether `topic` is a pattern that can be compiled."""
    levels = topic.split("/")
    odd = [one for one in levels if re.search(r"[{}+#]", one) and one not in _ONE and one not in _MANY]
    return not odd and "#" not in levels[:-1] and sum(one in _MANY for one in levels) <= 1


def meanings(topic: str) -> set[str]:
    """Return what the levels of a pattern are part of: ``device``, ``metric``, ``any``."""
    return {(_ONE | _MANY)[level] for level in topic.split("/") if level in _ONE or level in _MANY}


def has_variable_metric(topic: str) -> bool:
    """Return whether topics of this pattern have different numbers of levels in the names of metrics."""
    return any(level in ("#", "{metric...}") for level in topic.split("/"))


def compiled(topic: str) -> Pattern:
    """Compile a pattern. [MQTT-4.7]: a wildcard as the first level does not match topics that begin with $."""
    levels = topic.split("/")
    found: list[str] = []
    for level in levels:
        if level == "$+":
            found.append(r"(\$[^/]*)")
        elif level == "+" or level == "{any}":
            found.append("([^/]*)")
        elif level in _ONE:
            found.append("([^/]+)")
        elif level == "#":
            found.append("(.*)")
        elif level in _MANY:
            found.append("([^/]+(?:/[^/]+)*)")
        else:
            found.append(re.escape(level))
    whole = "/".join(found)
    if levels[-1] == "#" and len(levels) > 1:
        whole = whole.removesuffix("/(.*)") + "(?:/(.*))?"
    wild = levels[0] in _ONE or levels[0] in _MANY
    named = [(_ONE | _MANY)[level] for level in levels if level in _ONE or level in _MANY]
    return Pattern(re.compile(("(?!\\$)" if wild and levels[0] != "$+" else "") + whole, re.DOTALL), tuple(named))


def topics_of(topic: str | Sequence[str]) -> list[str]:
    """Return the patterns of a rule, which has one or several."""
    return [topic] if isinstance(topic, str) else list(topic)
