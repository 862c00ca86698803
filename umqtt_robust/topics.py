"""Checks and matches topic names and filters that have wildcards or more than printable ASCII (MQTT 3.1.1, 4.7).

The session handles all others itself, by _is_plain() and by comparison.
"""

from .errors import InvalidArgument

WILDCARD = "wildcard in a topic"  # of check_inbound()


def check_utf8(text, what="client_id"):
    """Returns `text` (str or bytes) as the bytes to send [MQTT-1.5.3-1, MQTT-1.5.3-2].

    Raises InvalidArgument if it has another type, is not UTF-8, contains U+0000 or is longer than 65535 bytes.
    """
    data = b""
    try:
        data = text.encode() if isinstance(text, str) else text
        str(data, "utf-8")
        ill_formed = not isinstance(data, bytes) or _ill_formed(data)
    except (TypeError, UnicodeError):
        ill_formed = True
    if ill_formed:
        raise InvalidArgument(what + " must be UTF-8, as str or bytes")
    if len(data) > 65535 or b"\0" in data:
        raise InvalidArgument(what + " is too long or holds NUL")
    return data


def _ill_formed(text):
    # MicroPython's decoder accepts overlong forms, surrogates and code points above U+10FFFF.
    last = 0
    for byte in text:
        if (
            byte in (0xC0, 0xC1)
            or byte > 0xF4
            or byte < (0xA0 if last == 0xE0 else 0x90 if last == 0xF0 else 0)
            or byte > (0x9F if last == 0xED else 0x8F if last == 0xF4 else 0xFF)
        ):
            return True
        last = byte
    return False


def check_topic_name(topic):
    """Returns a topic name as bytes. Raises InvalidArgument if it is empty or has a wildcard [MQTT-3.3.2-2]."""
    topic = check_utf8(topic, "topic")
    if not topic or b"+" in topic or b"#" in topic:
        raise InvalidArgument("topic is empty or has a wildcard")
    return topic


def check_inbound(topic):
    """Returns why no PUBLISH may have that topic name [MQTT-3.3.2-2], or None. topic: bytes."""
    try:
        if not check_utf8(topic):
            return "empty topic"
    except InvalidArgument:
        return "topic is not UTF-8, or holds NUL"
    return WILDCARD if b"+" in topic or b"#" in topic else None


def check_topic_filter(topic_filter):
    """Returns a topic filter as bytes. Raises InvalidArgument if it is empty or a wildcard is misplaced
    [MQTT-4.7.1-2, MQTT-4.7.1-3].
    """
    topic_filter = check_utf8(topic_filter, "topic filter")
    levels = topic_filter.split(b"/")
    for level in levels:
        if len(level) > 1 and (b"+" in level or b"#" in level):
            topic_filter = b""
    if not topic_filter or b"#" in levels[:-1]:
        raise InvalidArgument("topic filter is empty or has a misplaced wildcard")
    return topic_filter


def matches(topic_filter, topic):
    """Returns True if the topic filter matches the topic name. Both are valid, and bytes.

    Wildcards at the first level do not match topic names that begin with `$` [MQTT-4.7.2-1].
    """
    if topic[:1] == b"$" and topic_filter[:1] in (b"+", b"#"):
        return False
    levels = topic.split(b"/")
    for level in topic_filter.split(b"/"):
        if level == b"#":
            return True
        if not levels or level != b"+" and level != levels[0]:
            return False
        levels.pop(0)
    return not levels
