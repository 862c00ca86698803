"""Messages that outlast their PUBLISH: retained messages and wills."""

from typing import NamedTuple


class MessageProperties(NamedTuple):
    """The properties of a message of MQTT 5, besides topic name, payload, QoS and retain flag.

    expiry: seconds that it may wait; None: any time. passed_on: the properties that subscribers get as they came,
    encoded, in their order.
    """

    expiry: int | None = None
    passed_on: bytes = b""


NO_PROPERTIES = MessageProperties()


class RetainedMessage(NamedTuple):
    """The last message with the retain flag on one topic name. Of MQTT 5:

    passed_on: see MessageProperties. expires_at: seconds since 1970; None: never.
    """

    topic_name: bytes
    payload: bytes
    qos: int
    passed_on: bytes = b""
    expires_at: int | None = None


class Will(NamedTuple):
    """The message a client leaves to be published when it goes without a DISCONNECT (3.1.2.5). Of MQTT 5:

    properties: of the message. delay: seconds from the end of the connection until it is published.
    """

    topic_name: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: MessageProperties = NO_PROPERTIES
    delay: int = 0
