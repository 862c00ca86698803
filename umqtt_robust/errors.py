"""The errors of the library.

MQTTError
├── InvalidArgument     the caller passed something MQTT or the configuration forbids; nothing was sent or queued
├── OutboxFull          no room for another message; args[0]: the limit that was reached
├── StoreError          the store cannot be read or written
├── Downgraded          the broker grants less than was asked for, such as QoS 1 for QoS 2; args[0]: what
├── MessageTooLarge     in large.py: an inbound message fits neither the receive buffer nor the memory, and was skipped
├── Discarded           in backpressure.py: no room for an inbound message that nobody sends again; args[0]: its topic
├── Malformed           in malformed.py: an inbound message breaks the standard, and does no harm; args: how, its topic
└── LinkLost            the link is gone or dead; the client reconnects by itself; args[0]: why;
    │                   "ack_timeout", "connect_timeout" and "ping_timeout" name the option whose time expired
    ├── ProtocolError   the peer broke the protocol; the link is closed [MQTT-4.8.0-1]
    ├── Refused         the broker refused; args are ("connect", return code) or ("subscribe", topic filter, code);
    │                   with MQTT 5 followed by the reason string. Then there are ("unsubscribe", topic filter, code,
    │                   reason string), ("publish", topic, code, reason string) and ("disconnect", code, reason string)
    │                   too; a server reference, if the broker gives one, is the last argument
    └── SessionPurged   in resume.py: the broker had a session that this client does not know

The first three are raised by the call that caused them. LinkLost, its subclasses, and a StoreError caused by a received
packet are not raised by `Client.tick()`: they go to `Client.on_error` or `Client.on_disconnect`, and are counted.
Further errors are in aio.py (Dropped), tls.py (ClockNotSet, CertificateRefused) and websocket.py (UpgradeRefused).
"""

from .base_errors import LinkLost, MQTTError, OutboxFull, ProtocolError

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


class Refused(LinkLost):
    pass
