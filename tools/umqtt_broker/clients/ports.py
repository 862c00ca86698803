"""What the parts of a connection see of it: each protocol has what one part uses. connection.py imports the parts."""

import asyncio
from typing import Protocol

from ..core.context import BrokerContext
from ..core.turns import Job
from ..routing.router import Publish, Router
from ..sessions.ports import ClientConnection
from ..sessions.session import Session
from ..stats import Stats
from ..store import Store


class RequestClient(Protocol):
    """What the handlers of rare packets see: whose packets they are, and where answers go."""

    context: BrokerContext
    router: Router
    store: Store
    publish: Publish
    protocol_level: int
    job: Job | None

    def do_job(self, acknowledgements: list[bytes]) -> bool:
        """Go on with `job` while there is time. Returns True when it is done."""
        ...

    def must_wait(self) -> bool:
        """Tell whether answers must wait for a commit."""
        ...

    def write(self, packets: list[bytes]) -> None:
        """Write packets in one piece."""

    def count_out(self, messages: int) -> None:
        """Count messages that are about to be written."""


class ReadClient(Protocol):
    """What everyone sees who takes what a client sent: what is kept, and whose turn it is."""

    stats: Stats
    protocol_level: int

    @property
    def backpressure(self) -> object | None:
        """What holds packets back; None as long as the client is read freely."""
        ...

    def keep_rest(self, data: bytes, needed: int) -> None:
        """Keep what is not a whole packet until there are `needed` bytes."""

    def has_time(self) -> bool:
        """Tell whether this turn goes on."""
        ...

    def wait_for_turn(self, rest: bytes) -> None:
        """Go on with `rest` when others have had their turn."""

    def forget_will(self) -> None:
        """The client has said DISCONNECT."""


class PacketClient(RequestClient, ReadClient, Protocol):
    """What the packet loop sees: where a read goes. ending: why the connection ends; "" for DISCONNECT."""

    session: Session | None
    ending: str
    topic_aliases: dict[int, bytes]

    @property
    def is_authenticating(self) -> bool:
        """Whether AUTH packets decide if its CONNECT is accepted."""
        ...

    def set_session_expiry(self, seconds: int) -> None:
        """The client has said in DISCONNECT how long its session is kept. Raises MalformedPacket."""

    def on_connect(self, packet: bytes, flags: int) -> Session | None:
        """Let a client in. Returns its session if it is in."""
        ...

    def on_auth(self, packet: bytes, acknowledgements: list[bytes]) -> bool:
        """Go on with the enhanced authentication. Returns False when the client is refused. Raises MalformedPacket."""
        ...

    def count_in(self, messages: int) -> None:
        """Count what a read brought."""


class BackpressureClient(ReadClient, Protocol):
    """What backpressure sees: where the packets that wait go in their turn."""

    context: BrokerContext
    closing: bool
    heard_at: float
    messages_in: int

    @property
    def is_waited_for(self) -> bool:
        """Whether the broker waits for acknowledgements of this client."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether something that was read waits for the next turn."""
        ...

    def begin_turn(self) -> None:
        """What follows is a turn of its own."""

    def process_packets(self, data: bytes) -> None:
        """Process packets, and write what they cause."""

    def feed_pending(self) -> None:
        """Feed what was kept."""

    def read_freely(self) -> None:
        """Nothing is held back any more."""

    def update_reading(self) -> None:
        """Read from the socket, or do not."""


class SessionClient(ClientConnection, Protocol):
    """What the registry of sessions sees of a connection, beside what is reached through a session."""

    transport: asyncio.Transport
    session: Session | None
