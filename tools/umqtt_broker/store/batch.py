"""What one transaction will write, and who waits for it."""

from collections.abc import Callable
from typing import NamedTuple

from ..packets import Will
from ..retained import RetainedMessage
from .base import Delivery, DeliveryRow, Holder, Wakeable


class Page(NamedTuple):
    """A request to read messages of one queue in the same transaction."""

    session: int
    after: int
    limit: int
    deliver: Callable[[list[DeliveryRow]], None]


class Batch:
    """Changes collected since the last transaction began.

    Where a key can change twice (a subscription, a retained topic) only the last state is kept. What is left
    commutes as long as the kinds are written in the order of `writer`: a position is inserted once and removed once.
    """

    __slots__ = (
        "acknowledged",
        "away",
        "deliveries",
        "held",
        "inbound",
        "number",
        "packet_ids",
        "pages",
        "released",
        "retained",
        "sent_limits",
        "sessions",
        "sleepers",
        "subscriptions",
        "usernames",
        "wills",
    )

    def __init__(self) -> None:
        self.number = 0
        self.sessions: dict[int, tuple[bytes, bytes | None] | None] = {}
        self.usernames: dict[int, bytes | None] = {}
        self.away: dict[int, int] = {}
        self.wills: dict[bytes, Will | None] = {}
        self.sent_limits: dict[int, int] = {}
        self.subscriptions: dict[tuple[int, bytes], int | None] = {}
        self.deliveries: list[Delivery] = []
        self.packet_ids: list[tuple[int, int, int]] = []
        self.released: list[tuple[int, int, int]] = []
        self.acknowledged: dict[int, list[int]] = {}
        self.inbound: dict[tuple[int, int], bool] = {}
        self.retained: dict[bytes, RetainedMessage | None] = {}
        self.pages: list[Page] = []
        self.held: dict[Holder, list[bytes]] = {}
        self.sleepers: dict[Wakeable, None] = {}

    def __bool__(self) -> bool:
        return bool(
            self.deliveries
            or self.acknowledged
            or self.sessions
            or self.subscriptions
            or self.retained
            or self.inbound
            or self.released
            or self.sent_limits
            or self.packet_ids
            or self.away
            or self.wills
            or self.usernames
            or self.pages
        )

    def absorb(self, later: "Batch") -> None:
        """Add what was recorded after this batch, so that both go in one transaction."""
        self.sessions.update(later.sessions)
        self.usernames.update(later.usernames)
        self.away.update(later.away)
        self.wills.update(later.wills)
        self.sent_limits.update(later.sent_limits)
        self.subscriptions.update(later.subscriptions)
        self.deliveries += later.deliveries
        self.packet_ids += later.packet_ids
        self.released += later.released
        for session, positions in later.acknowledged.items():
            self.acknowledged.setdefault(session, []).extend(positions)
        self.inbound.update(later.inbound)
        self.retained.update(later.retained)
        self.pages += later.pages
        for holder, packets in later.held.items():
            self.held.setdefault(holder, []).extend(packets)
        self.sleepers.update(later.sleepers)
