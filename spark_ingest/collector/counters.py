"""What a collector counts. These keys are in its status, its log and, as metrics, in Prometheus.

=====================  ===================================================================================
name, broker, spool    what it was started with; `spool` is the UUID, another one with each start
connected, subscribed  true or false, now
waiting                why it takes no messages at the moment (no room), or null
messages, bytes        PUBLISH packets made durable since the start, and their bytes
groups                 blocks written, each with one sync
append_seconds         time spent in writing and syncing them
redelivered            messages that came with DUP set
last_message_ms        when the newest message was received, in Unix milliseconds, or null
connects, lost_links   connections made, and those that ended without being asked to
malformed_streams      connections closed because the broker sent bytes that are not MQTT
refusals               CONNACK or SUBACK said no
sessions_lost          the broker had forgotten the session: what it held for it is gone
takeovers              alarms that somebody else uses the same client id
spool_errors           appends that failed; none of their messages was acknowledged
pauses                 times that it stopped taking messages because there was no room
spool_bytes            bytes in the spool's segments
truncated_bytes        torn tail cut off at the start
segment, position      the spool's durable position
last_error             the newest error line, or null
=====================  ===================================================================================
"""

from dataclasses import dataclass


@dataclass
class Counters:
    """See the module's table."""

    connected: bool = False
    subscribed: bool = False
    waiting: str | None = None
    messages: int = 0
    bytes: int = 0
    groups: int = 0
    append_seconds: float = 0.0
    redelivered: int = 0
    last_message_ms: int | None = None
    connects: int = 0
    lost_links: int = 0
    malformed_streams: int = 0
    refusals: int = 0
    sessions_lost: int = 0
    takeovers: int = 0
    spool_errors: int = 0
    pauses: int = 0
    last_error: str | None = None
