"""The tuple that represents a message in a queue, and its special values."""

from ..protocol.packets import encode_publish_head, topic_name_in
from ..protocol.packets5 import encode_content, payload_of

# A message of a queue: position, packet_id, qos, head (the PUBLISH up to the topic name; None once its PUBREC came
# and only PUBREL is resent), payload (for a client of MQTT 5 the content: properties, then the payload), gate,
# expires_at (seconds since 1970; 0: never). A tuple, and its pieces shared by all sessions: this is the hot path. The
# packet_id of a QoS 0 message is 0.
Entry = tuple[int, int, int, bytes | None, bytes, int, int]

# Gates: what must be safe in the store before a message may be sent. A positive gate is the number of a batch; the
# other one that closes is DurableSession's.
OPEN = 0

# In the place of the QoS of a message in flight: sent at QoS 1 for a shared subscription. It stays in the group's queue
# until it is acknowledged.
SHARED = 3


def converted(entry: Entry, is_version5: bool) -> Entry:
    """Return a message of a queue in the form of MQTT 5, where its content has properties, or without them."""
    position, packet_id, qos, head, payload, gate, expires_at = entry
    assert head is not None  # only what was not released waits in a queue
    content = encode_content(payload) if is_version5 else payload_of(payload)
    head = encode_publish_head(head[0], topic_name_in(head), len(content))
    return position, packet_id, qos, head, content, gate, expires_at
