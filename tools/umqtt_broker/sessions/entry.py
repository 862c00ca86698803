"""A message of a queue, and the numbers that stand in it."""

# A message of a queue: position, packet_id, qos, head (the PUBLISH up to the topic name; None once its PUBREC came
# and only PUBREL is resent), payload, gate, expires_at (seconds since 1970; 0: never). A tuple, and its pieces shared
# by all sessions: this is the hot path. The packet_id of a QoS 0 message is 0.
Entry = tuple[int, int, int, bytes | None, bytes, int, int]

# Gates: what must be safe in the store before a message may be sent. A positive gate is the number of a batch; the
# other one that closes is DurableSession's.
OPEN = 0

# In the place of the QoS of a message in flight: sent at QoS 1 for a shared subscription. It stays in the group's queue
# until it is acknowledged.
SHARED = 3
