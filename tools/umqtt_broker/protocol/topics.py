"""Topic names and topic filters as UTF-8 bytes: validation and matching (MQTT 3.1.1, 4.7)."""

from typing import Final

from ..errors import MalformedPacket

# Bytes of the longest topic name [MQTT-4.7.3-3].
MAX_LENGTH: Final = 65535

# Bytes of the longest topic name that caches keep: a client that invents a new long name for every message must not
# fill the memory.
MAX_REMEMBERED: Final = 256


def is_utf8(text: bytes) -> bool:
    """Tell whether `text` is well-formed UTF-8 without surrogates and U+0000 [MQTT-1.5.3-1, -2]."""
    if 0 in text:
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def reason_code_of(topic: bytes, invalid: int) -> int:
    """Return the reason code for a topic name or filter that is not valid.

    The packet is malformed if it is ill-formed UTF-8 [MQTT-1.5.4-1, -2] or empty [MQTT-4.7.3-1], else it is `invalid`.
    """
    return invalid if topic and is_utf8(topic) else 0x81


def is_too_deep(topic: bytes, max_levels: int) -> bool:
    """Tell whether a topic name or filter has more than `max_levels` levels below its first, counted as mosquitto does.

    Every level costs a step in the trees of subscriptions and retained messages.
    """
    return topic.count(b"/") > max_levels


def check_topic_name(topic_name: bytes, max_levels: int) -> None:
    """Raise MalformedPacket if a topic name is invalid or has too many levels."""
    if not is_topic_name(topic_name):
        # MQTT 5, 3.3.2.1: an empty name without a topic alias is a Protocol Error. [MQTT-3.3.2-2] wildcards.
        raise MalformedPacket("invalid topic name", reason_code_of(topic_name, 0x90) if topic_name else 0x82)
    if is_too_deep(topic_name, max_levels):
        raise MalformedPacket("too many topic levels", 0x90)


def is_topic_name(topic_name: bytes) -> bool:
    """Tell whether a PUBLISH may carry `topic_name` [MQTT-3.3.2-2, MQTT-4.7.3-1]."""
    return bool(topic_name) and b"#" not in topic_name and b"+" not in topic_name and is_utf8(topic_name)


def is_topic_filter(topic_filter: bytes) -> bool:
    """Tell whether a topic filter is valid: wildcards fill whole levels, and `#` only the last [MQTT-4.7.1-2, -3]."""
    if not topic_filter or not is_utf8(topic_filter):
        return False
    if b"#" not in topic_filter and b"+" not in topic_filter:
        return True
    levels = topic_filter.split(b"/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if level == b"#":
            if index != last:
                return False
        elif level != b"+" and (b"#" in level or b"+" in level):
            return False
    return True


_SHARE: Final = b"$share/"


def split_shared(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """Return the group and the filter of a shared subscription, `$share/GROUP/FILTER` (MQTT 5, 4.8.2).

    None for every other filter. Raises ValueError where the group or the filter is not valid.
    """
    if not topic_filter.startswith(_SHARE):
        # `$share` alone is refused too: it looks like a shared subscription cut short.
        if topic_filter == b"$share":
            raise ValueError("a shared subscription is $share/GROUP/FILTER")
        return None
    group, _, shared_filter = topic_filter[len(_SHARE) :].partition(b"/")
    # [MQTT-4.8.2-1, -2] of MQTT 5.
    if not group or b"+" in group or b"#" in group or not is_topic_filter(shared_filter):
        raise ValueError("a shared subscription is $share/GROUP/FILTER")
    return group, shared_filter


def is_mount_point(mount: bytes) -> bool:
    """Tell whether `mount` may be a mount point: topic names can begin with it, and it is not the start of $share."""
    begins_shared = mount.startswith(b"$share") or b"$share".startswith(mount)
    return is_topic_name(mount) and len(mount) < MAX_LENGTH and not begins_shared


def mounted_name(mount: bytes, topic_name: bytes) -> bytes:
    """Return a client's topic name with the mount point of its listener. Raises MalformedPacket if it is too long."""
    name = mount + topic_name
    if len(name) > MAX_LENGTH:
        raise MalformedPacket("topic name too long with the mount point")
    return name


def mounted_filter(mount: bytes, topic_filter: bytes) -> bytes:
    """Return a client's filter with the mount point of its listener. Raises ValueError as split_shared() does."""
    shared = split_shared(topic_filter)
    if shared is None:
        return mount + topic_filter
    return b"".join((_SHARE, shared[0], b"/", mount, shared[1]))


def has_wildcard(topic_filter: bytes) -> bool:
    """Tell whether a valid `topic_filter` can match more than one topic name."""
    return b"#" in topic_filter or b"+" in topic_filter
