"""The tuple that represents a message in a queue, and its special values."""

from typing import Final

from ..protocol.packets import encode_publish_head, topic_name_in
from ..protocol.packets5 import encode_content, payload_of

# A message of a queue: position; packet_id (0 at QoS 0); qos; head (the PUBLISH up to the topic name; None once its
# PUBREC has come and only PUBREL is resent); payload (for a client of MQTT 5 the content: the properties, then the
# payload); gate; expires_at (seconds since 1970; 0: never). This is the fast path: a plain tuple, and all sessions
# share head and payload.
Entry = tuple[int, int, int, bytes | None, bytes, int, int]

# Gates: what the store must have committed before a message may be sent. OPEN: nothing. A positive gate: the batch with
# this number. The remaining gate is durable._NEEDS_SENT_LIMIT.
OPEN: Final = 0

# Takes the place of the QoS of a message in flight that is sent at QoS 1 for a shared subscription: until it is
# acknowledged, it belongs to the group and not to the session.
SHARED: Final = 3


def converted(entry: Entry, is_version5: bool) -> Entry:
    """Return a message of a queue in the form for MQTT 5, with properties before the payload, or without them."""
    position, packet_id, qos, head, payload, gate, expires_at = entry
    assert head is not None  # only what was not released waits in a queue
    content = encode_content(payload) if is_version5 else payload_of(payload)
    head = encode_publish_head(head[0], topic_name_in(head), len(content))
    return position, packet_id, qos, head, content, gate, expires_at
