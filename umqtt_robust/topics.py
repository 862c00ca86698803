"""Topic names and topic filters: MQTT 3.1.1, chapter 4.7."""

from .errors import InvalidArgument


def check_utf8(text, what):
    """Returns `text` (str or bytes) as bytes fit for the wire [MQTT-1.5.3-1, MQTT-1.5.3-2].

    Raises InvalidArgument when it is of another type, not UTF-8, holds U+0000 or is longer than 65535 bytes.
    """
    if isinstance(text, str):
        text = text.encode()
    elif not isinstance(text, bytes):
        raise InvalidArgument(what + " must be str or bytes")
    else:
        try:
            str(text, "utf-8")
        except UnicodeError:
            raise InvalidArgument(what + " is not UTF-8")
    if len(text) > 65535 or b"\0" in text:
        raise InvalidArgument(what + " is too long or holds NUL")
    return text


def check_topic_name(topic):
    """Returns a topic name as bytes; raises InvalidArgument when it is empty or has a wildcard [MQTT-3.3.2-2]."""
    topic = check_utf8(topic, "topic name")
    if not topic or b"+" in topic or b"#" in topic:
        raise InvalidArgument("topic name is empty or has a wildcard")
    return topic


def check_topic_filter(topic_filter):
    """Returns a topic filter as bytes; raises InvalidArgument when a wildcard is misplaced [MQTT-4.7.1-2, -3]."""
    topic_filter = check_utf8(topic_filter, "topic filter")
    levels = topic_filter.split(b"/")
    for i in range(len(levels)):
        level = levels[i]
        if len(level) > 1 and (b"+" in level or b"#" in level) or level == b"#" and i + 1 < len(levels):
            raise InvalidArgument("topic filter has a misplaced wildcard")
    if not topic_filter:
        raise InvalidArgument("topic filter is empty")
    return topic_filter


def matches(topic_filter, topic):
    """True when the topic filter selects the topic name; both are valid and bytes.

    Wildcards at the first level do not select topics that begin with `$` [MQTT-4.7.2-1].
    """
    if topic_filter == topic:
        return True
    if topic[:1] == b"$" and topic_filter[:1] in (b"+", b"#"):
        return False
    wanted = topic_filter.split(b"/")
    levels = topic.split(b"/")
    for i in range(len(wanted)):
        if wanted[i] == b"#":
            return True
        if i >= len(levels) or wanted[i] != b"+" and wanted[i] != levels[i]:
            return False
    return len(wanted) == len(levels)
