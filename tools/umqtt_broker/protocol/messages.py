"""Messages that outlast their PUBLISH: what one topic retains, and what a client leaves behind."""

from typing import NamedTuple


class RetainedMessage(NamedTuple):
    """The last message with the retain flag on one topic name."""

    topic_name: bytes
    payload: bytes
    qos: int


class Will(NamedTuple):
    """The message a client leaves to be published when it goes without a DISCONNECT (3.1.2.5)."""

    topic_name: bytes
    payload: bytes
    qos: int
    retain: bool
