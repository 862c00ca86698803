"""Protocols for the parts that a session uses: its connection, its groups, its retained messages."""

from collections import deque
from typing import Protocol

from ..protocol.packets5 import Connect5
from ..settings.broker import Listener

# Topic filters, each followed by its granted QoS.
Granted = deque[bytes | int]


class Output(Protocol):
    """The part of its connection that a session uses to send packets. established: the CONNACK is written."""

    established: bool
    congested: bool

    def write(self, packets: list[bytes]) -> None:
        """Write packets in one piece."""

    def send(self, data: bytes) -> None:
        """Write whole packets."""

    def count_out(self, messages: int) -> None:
        """Count messages that are about to be written."""


class ClientConnection(Output, Protocol):
    """The part of clients.connection.Connection that is used through its session."""

    listener: Listener
    peer: str
    ending: str
    connected_at: float
    keep_alive: int
    messages_in: int
    messages_out: int
    client_limits: Connect5

    @property
    def is_held_back(self) -> bool:
        """True if packets of the client wait: for room in a queue, their turn or the decision on its CONNECT."""
        ...

    def bind(self) -> None:
        """Apply new rights or settings."""

    def send_away(self) -> None:
        """Close, and tell a client of MQTT 5 which server to use; do nothing to others."""

    def abort(self, ending: str, reason_code: int = 0) -> None:
        """Close at once, for a reason in the words of the log. A client of MQTT 5 is told the reason code."""


class Group(Protocol):
    """The part of a shared subscription's queue that its members use. number: the number of the queue in the store."""

    number: int

    @property
    def queued(self) -> int:
        """The number of messages that wait."""
        ...

    def pump(self) -> None:
        """Give messages to members that have room."""

    def stop_waiting(self) -> None:
        """Note that no message waits, so that the members are told of the next one that does."""

    def give_back(self, positions: list[int]) -> None:
        """Take back the messages at these positions, which a member has not acknowledged."""

    def set_protocol_level(self, protocol_level: int) -> None:
        """Note that a member uses this protocol version."""

    def acknowledge(self, position: int) -> None:
        """Handle a member's acknowledgement of the message at `position`."""

    def forget(self, position: int) -> None:
        """Forget a message that is now the member's own."""


class PendingRetained(Protocol):
    """The delivery of retained messages to a session that subscribed: see routing.retained_delivery."""

    def recover(self, topic_filter: bytes, granted_qos: int) -> None:
        """Restart the delivery for a subscription that was not finished when the broker was killed."""

    def expect(self, topic_filter: bytes, number: int) -> None:
        """Note a new subscription. number: the filter is the nth new one of its SUBSCRIBE. begin() follows."""

    def begin(self, granted: Granted) -> list[bytes]:
        """Begin with new subscriptions. Returns packets at QoS 0 that are to follow the SUBACK."""
        ...

    def resume(self) -> None:
        """Continue if the session can take more."""

    def cancel(self, topic_filter: bytes) -> None:
        """Cancel the delivery for a filter that is unsubscribed."""
