"""The counters of a collector, with the keys that its status, its log and its Prometheus metrics have for them.

=====================  ===================================================================================
name, broker, spool    name and URL that it was started with; UUID of the spool, a new one at each start
connected, subscribed  true or false: the state at the moment
waiting                why it receives no messages at the moment (no room), or null
messages, bytes        PUBLISH packets made durable since the start, and their bytes
groups                 blocks written, each with one sync
append_seconds         time spent in writing and syncing them
redelivered            messages that came with DUP set
last_message_ms        when the newest message was received, in Unix milliseconds, or null
connects, lost_links   connections that a broker accepted; connections lost, or not made
malformed_streams      connections closed because the broker sent bytes that are not MQTT
refusals               CONNACK and SUBACK packets that refused the connection or a subscription
sessions_lost          times that the broker had lost the session, with the messages queued in it
takeovers              alarms that another client uses the same client id
spool_errors           appends that failed; none of their messages was acknowledged
pauses                 times that it stopped taking messages because there was no room
spool_bytes            bytes in the spool's segments
truncated_bytes        bytes of an incomplete write that were cut off at the start
segment, position      the spool's durable position: segment number and byte offset in it
last_error             the newest error line, or null
=====================  ===================================================================================
"""

from dataclasses import dataclass


@dataclass
class Counters:
    """The counters of one collector; the table of the module explains each."""

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
