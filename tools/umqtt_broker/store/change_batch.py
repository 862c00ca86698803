"""Batches: the changes that one transaction writes, and the packets that wait for it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..protocol.messages import RetainedMessage, Will
from .base import CommitWaiter, Delivery, DeliveryRow, Owner, Wakeable
from .lock import Witness


class Page(NamedTuple):
    """A request to read messages of one queue in the transaction of a batch: see Store.load_page()."""

    session: int
    after: int
    limit: int
    deliver: Callable[[list[DeliveryRow]], None]


class AwaitingCommit:
    """Packets of a connection that wait for all entries before them in the batch."""

    __slots__ = ("packets", "waiter")

    def __init__(self, waiter: CommitWaiter, packets: list[bytes]) -> None:
        self.waiter = waiter
        self.packets = packets


class Mark:
    """A marker in a batch: as long as it is there, an entry recorded before it is there too."""


# An entry that only a commit removes.
BARRIER = None
Entry = Delivery | AwaitingCommit | Mark | None

_BARRIER_KEY = 0
MARK_KEY = -1


class Batch:
    """Changes collected since the last transaction began.

    entries: in the order of recording. A message, under a key made of its session and position, until it is written or
        completely acknowledged; a BARRIER, where the first other change was recorded; waiting packets, under falling
        negative keys. Packets may be released when only packets are before them.
    acknowledged: positions, by session, of acknowledged messages that an earlier transaction wrote or is writing.

    For keys that can change twice (a subscription, a retained topic) only the last state is kept. The other changes can
    be written grouped by kind, in the order of `sqlite.write_batch`, because a position is inserted once and removed
    once.
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
        # Set when the transaction begins: the messages that it inserts.
        self.deliveries: list[Delivery] = []
        # How many of them were acknowledged while the transaction ran.
        self.early = 0
        # Set when the transaction begins: the commit that it will be.
        self.progress = Witness(b"", 0, 0)
        # Set by the transaction: True if it has changed anything, so that it counts as a commit.
        self.changes = False
        # Set when the transaction begins: the number of an ended session whose messages it removes, 0 for none.
        self.leftover = 0
        # Set by the transaction: True if that session has no messages left.
        self.leftover_is_gone = False
        # Set by the transaction: the messages that were moved to quarantine.
        self.garbled: list[str] = []
        self.sessions: dict[int, tuple[bytes, Owner] | None] = {}
        # Shared queues by number: the key of a new one; None: it has ended.
        self.shares: dict[int, bytes | None] = {}
        # Messages moved from shared queues to sessions: (session, position, packet_id, qos, share, position there).
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
        """Add a barrier: packets recorded behind it are released only by the commit."""
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
        """Return the messages that are not acknowledged yet, in the order of recording."""
        return [entry for entry in self.entries.values() if isinstance(entry, tuple)]

    def pop_released(self) -> dict[int, AwaitingCommit]:
        """Remove and return the packets that no longer wait for any other entry, by key; remove marks among them."""
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
        """Remove and return all waiting packets, because the transaction has ended; remove barrier and marks too."""
        found = [entry for entry in self.entries.values() if isinstance(entry, AwaitingCommit)]
        self.entries = {key: entry for key, entry in self.entries.items() if isinstance(entry, tuple)}
        return found

    def absorb(self, later: "Batch") -> None:
        """Add the changes of `later`, which were recorded after this batch, so that one transaction writes both."""
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
