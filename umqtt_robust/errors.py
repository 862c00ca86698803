"""Every error of the library.

MQTTError
├── InvalidArgument     the caller passed something MQTT or the configuration forbids; nothing was sent or queued
├── OutboxFull          no room for another message, and the policy is to refuse it
├── StoreError          the store cannot be read or written
├── LinkLost            the link is gone or dead; the client reconnects by itself
├── ProtocolError       the peer broke the protocol; the link is closed [MQTT-4.8.0-1]
├── ConnectRefused      CONNACK with a return code other than 0
├── SubscribeRefused    SUBACK with 0x80
├── SessionPurged       the broker remembered a session that this client cannot vouch for
└── MessageTooLarge     an inbound message did not fit the receive buffer and was skipped

The first three are raised at the call that caused them. The others never leave `Client.tick()`: they go to
`Client.on_error` and into counters.
"""


class MQTTError(Exception):
    """Base of all errors of this library."""


class InvalidArgument(MQTTError):
    pass


class OutboxFull(MQTTError):
    """args[0]: the capacity, in messages, or in bytes when that was the limit."""


class StoreError(MQTTError):
    pass


class LinkLost(MQTTError):
    pass


class ProtocolError(MQTTError):
    pass


class ConnectRefused(MQTTError):
    """args[0], `return_code`: 1 to 5, MQTT 3.1.1 table 3.1."""

    @property
    def return_code(self):
        return self.args[0]


class SubscribeRefused(MQTTError):
    """args[0]: the topic filter."""


class SessionPurged(MQTTError):
    """args[0]: the broker."""


class MessageTooLarge(MQTTError):
    """args[0]: the topic name, args[1]: the size of the packet in bytes."""
