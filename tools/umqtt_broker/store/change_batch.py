"""The changes that one transaction will write, and the packets that wait for it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..protocol.messages import RetainedMessage, Will
from .base import CommitWaiter, Delivery, DeliveryRow, Owner, Wakeable
from .lock import Witness


class Page(NamedTuple):
    """A request to read messages of one queue in the same transaction."""

    session: int
    after: int
    limit: int
    deliver: Callable[[list[DeliveryRow]], None]


class AwaitingCommit:
    """Packets of a connection that wait for every entry before them."""

    __slots__ = ("packets", "waiter")

    def __init__(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        self.waiter = waiter
        self.packets = packets


class Mark:
    """A marker in a batch: as long as it remains, an entry recorded before it remains too."""


# An entry that only a commit takes away.
BARRIER = None
Entry = Delivery | AwaitingCommit | Mark | None

_BARRIER_KEY = 0
MARK_KEY = -1


class Batch:
    """Changes collected since the last transaction began.

    entries: the order of things. A message, under `delivery_key`, until it is written or is acknowledged to the end;
        a BARRIER, where the first other change is recorded; packets that wait, under negative keys that fall. They
        may be released when nothing but packets stands before them.
    acknowledged: positions, by session, of messages that an earlier transaction wrote.

    Where a key can change twice (a subscription, a retained topic) only the last state is kept. What is left
    commutes as long as the kinds are written in the order of `sqlite.write_batch`: a position is inserted once and
    removed once.
    """

    __slots__ = (
        "acknowledged",
        "away",
        "changes",
        "deliveries",
        "early",
        "entries",
        "garbled",
        "inbound",
        "leftover",
        "leftover_is_gone",
        "moves",
        "number",
        "owners",
        "packet_ids",
        "pages",
        "progress",
        "released",
        "retained",
        "retained_pending",
        "sent_limits",
        "sessions",
        "shares",
        "sleepers",
        "subscriptions",
        "wills",
    )

    def __init__(self) -> None:
        self.number = 0
        self.entries: dict[int, Entry] = {}
        self.acknowledged: dict[int, list[int]] = {}
        # Set when the transaction begins: what it inserts; how many of them were acknowledged while it ran.
        self.deliveries: list[Delivery] = []
        self.early = 0
        # Set likewise: the commit that it will be. changes: whether anything was written, so that it is one.
        self.progress = Witness(b"", 0, 0)
        self.changes = False
        # Set likewise: an ended session with messages left, or 0; whether it has none left.
        self.leftover = 0
        self.leftover_is_gone = False
        # Set by it: messages that went to quarantine.
        self.garbled: list[str] = []
        self.sessions: dict[int, tuple[bytes, Owner] | None] = {}
        # Shared queues made, by number, with their keys; None: ended.
        self.shares: dict[int, bytes | None] = {}
        # From shared queues to sessions: (session, position, packet_id, qos, share, position there).
        self.moves: list[tuple[int, int, int, int, int, int]] = []
        self.retained_pending: dict[tuple[int, bytes], bool] = {}
        self.owners: dict[int, Owner] = {}
        self.away: dict[int, int] = {}
        self.wills: dict[bytes, Will | None] = {}
        self.sent_limits: dict[int, int] = {}
        self.subscriptions: dict[tuple[int, bytes], tuple[int, int] | None] = {}
        self.packet_ids: list[tuple[int, int, int]] = []
        self.released: list[tuple[int, int, int]] = []
        self.inbound: dict[tuple[int, int], bool] = {}
        self.retained: dict[bytes, RetainedMessage | None] = {}
        self.pages: list[Page] = []
        self.sleepers: dict[Wakeable, None] = {}

    def add_barrier(self) -> None:
        """Let nothing behind this point be released before the commit."""
        if _BARRIER_KEY not in self.entries:
            self.entries[_BARRIER_KEY] = BARRIER

    def is_worth_a_transaction(self) -> bool:
        """Return True if there is anything to write or to read."""
        return bool(
            self.acknowledged
            or _BARRIER_KEY in self.entries
            or any(isinstance(entry, tuple) for entry in self.entries.values())
        )

    def undelivered(self) -> list[Delivery]:
        """The messages that are not acknowledged yet, in the order recorded."""
        return [entry for entry in self.entries.values() if isinstance(entry, tuple)]

    def pop_released(self) -> dict[int, AwaitingCommit]:
        """Remove and return the entries with packets that wait for no other entry any more."""
        entries = self.entries
        first: list[int] = []
        found: dict[int, AwaitingCommit] = {}
        for key, entry in entries.items():
            if isinstance(entry, AwaitingCommit):
                found[key] = entry
            elif not isinstance(entry, Mark):
                break
            first.append(key)
        for key in first:
            del entries[key]
        return found

    def pop_all_awaiting(self) -> list[AwaitingCommit]:
        """Remove and return all packets that wait: the batch is over."""
        found = [entry for entry in self.entries.values() if isinstance(entry, AwaitingCommit)]
        self.entries = {key: entry for key, entry in self.entries.items() if isinstance(entry, tuple)}
        return found

    def absorb(self, later: "Batch") -> None:
        """Add the changes recorded after this batch, so that one transaction writes both."""
        self.deliveries = []
        self.add_barrier()
        later.entries.pop(_BARRIER_KEY, None)
        self.entries.update(later.entries)
        for session, positions in later.acknowledged.items():
            self.acknowledged.setdefault(session, []).extend(positions)
        self.sessions.update(later.sessions)
        self.shares.update(later.shares)
        self.moves += later.moves
        self.retained_pending.update(later.retained_pending)
        self.owners.update(later.owners)
        self.away.update(later.away)
        self.wills.update(later.wills)
        self.sent_limits.update(later.sent_limits)
        self.subscriptions.update(later.subscriptions)
        self.packet_ids += later.packet_ids
        self.released += later.released
        self.inbound.update(later.inbound)
        self.retained.update(later.retained)
        self.pages += later.pages
        self.sleepers.update(later.sleepers)


def ranges(positions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of consecutive numbers in `positions`."""
    ordered = sorted(positions)
    first = last = ordered[0]
    for position in ordered:
        if position > last + 1:
            yield first, last
            first = position
        last = position
    yield first, last
