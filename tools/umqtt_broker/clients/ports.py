"""Protocols: what each part (packet loop, handlers, backpressure, registry) uses of a connection.

They avoid an import cycle: connection.py imports the parts.
"""

import asyncio
from typing import Protocol

from ..core.context import BrokerContext
from ..core.turns import Job
from ..routing.router import Publish, Router
from ..sessions.ports import ClientConnection
from ..sessions.session import Session
from ..stats import Stats
from ..store import Store


class PacketClient(Protocol):
    """The connection as the packet loop, its handlers and the backpressure see it.

    closing: nothing more is read. heard_at: when data last came, in the event loop's time. messages_in: PUBLISH packets
    received. ending: why the connection ends; "" for DISCONNECT. job: work of one packet that takes more than one turn.
    """

    context: BrokerContext
    router: Router
    store: Store
    stats: Stats
    session: Session | None
    publish: Publish
    protocol_level: int
    topic_aliases: dict[int, bytes]
    job: Job | None
    closing: bool
    heard_at: float
    messages_in: int
    ending: str

    # CONNECT, DISCONNECT and answers

    def on_connect(self, packet: bytes, flags: int) -> Session | None:
        """Accept a client. Returns its session if accepted."""
        ...

    def set_session_expiry(self, seconds: int) -> None:
        """Set how long the session is kept, as given in DISCONNECT. Raises MalformedPacket."""

    def forget_will(self) -> None:
        """Discard the will after a DISCONNECT."""

    def must_wait(self) -> bool:
        """Return True if answers must wait for a commit."""
        ...

    def write(self, packets: list[bytes]) -> None:
        """Write packets in one piece."""

    def count_in(self, messages: int) -> None:
        """Count the PUBLISH packets of a read."""

    def count_out(self, messages: int) -> None:
        """Count messages that are about to be written."""

    # Input and turns

    @property
    def backpressure(self) -> object | None:
        """The Backpressure that holds packets back; None as long as nothing limits how the client is read."""
        ...

    @property
    def is_waited_for(self) -> bool:
        """True if the broker waits for acknowledgements of this client."""
        ...

    @property
    def is_waiting(self) -> bool:
        """True if data that was read waits for the next turn."""
        ...

    def has_time(self) -> bool:
        """Return True if this turn may continue."""
        ...

    def begin_turn(self) -> None:
        """Begin a new turn."""

    def wait_for_turn(self, rest: bytes) -> None:
        """Continue with `rest` after the others have had their turn."""

    def do_job(self, acknowledgements: list[bytes]) -> bool:
        """Continue with `job` while there is time. Returns True when it is done."""
        ...

    def process_packets(self, data: bytes) -> None:
        """Process packets, and write the answers and messages that they cause."""

    def keep_rest(self, data: bytes, needed: int) -> None:
        """Keep an incomplete packet until there are `needed` bytes."""

    def feed_pending(self) -> None:
        """Feed the kept data to the backpressure."""

    def read_freely(self) -> None:
        """Hold nothing back any more."""

    def update_reading(self) -> None:
        """Start or stop reading from the socket, as the state requires."""


class SessionClient(ClientConnection, Protocol):
    """What the registry of sessions uses of a connection, in addition to what a session uses of it."""

    transport: asyncio.Transport
    session: Session | None
