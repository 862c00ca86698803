"""Every error of the library.

MQTTError
├── InvalidArgument     the caller passed something MQTT or the configuration forbids; nothing was sent or queued
├── OutboxFull          no room for another message; args[0]: the limit that was met
├── StoreError          the store cannot be read or written
├── Downgraded          the broker acknowledged a message at QoS 2 as one at QoS 1; reported once
├── MessageTooLarge     in large.py: an inbound message fits neither the receive buffer nor the memory, and was skipped
└── LinkLost            the link is gone or dead; the client reconnects by itself; args[0]: why. "ack_timeout",
    │                   "connect_timeout" and "ping_timeout" are the options whose time went by without an answer
    ├── ProtocolError   the peer broke the protocol; the link is closed [MQTT-4.8.0-1]
    ├── Refused         the broker said no: args are ("connect", return code) or ("subscribe", topic filter, code);
    │                   with MQTT 5 ("connect", reason code, reason string), ("unsubscribe", topic filter, code),
    │                   ("publish", topic, code, reason string) and ("disconnect", code, reason string) too; a server
    │                   reference, where the broker gives one, is the last of them
    └── SessionPurged   in resume.py: the broker remembered a session that this client cannot vouch for

The first three are raised at the call that caused them. LinkLost and what is below it, and a StoreError of what
arrives, never leave `Client.tick()`: they go to `Client.on_error` or `Client.on_disconnect` and into counters.
"""

from .base_errors import LinkLost, MQTTError, OutboxFull, ProtocolError, Refused

__all__ = [
    "Downgraded",
    "InvalidArgument",
    "LinkLost",
    "MQTTError",
    "OutboxFull",
    "ProtocolError",
    "Refused",
    "StoreError",
]


class InvalidArgument(MQTTError):
    pass


class StoreError(MQTTError):
    pass


class Downgraded(MQTTError):
    pass
