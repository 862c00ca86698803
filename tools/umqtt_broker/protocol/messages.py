"""Messages that outlast their PUBLISH: retained messages and wills."""

from typing import Final, NamedTuple


class MessageProperties(NamedTuple):
    """The properties of a message of MQTT 5.

    expiry: the message expiry interval, in seconds; None: the message does not expire. passed_on: the properties that
    are passed on to subscribers unchanged, encoded, in the order in which they came.
    """

    expiry: int | None = None
    passed_on: bytes = b""


NO_PROPERTIES: Final = MessageProperties()


class RetainedMessage(NamedTuple):
    """The retained message of one topic name.

    Only with MQTT 5: passed_on: see MessageProperties. expires_at: seconds since 1970; None: never.
    """

    topic_name: bytes
    payload: bytes
    qos: int
    passed_on: bytes = b""
    expires_at: int | None = None


class Will(NamedTuple):
    """The will: the message to publish if the client's connection ends without a DISCONNECT (3.1.2.5).

    Only with MQTT 5: properties: of the message. delay: seconds from the end of the connection until it is published.
    """

    topic_name: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: MessageProperties = NO_PROPERTIES
    delay: int = 0
