"""Actions that wait for a commit: random recording, acknowledging, committing and failing against a plain model.

Time is virtual, and transactions end when the test says so: a seed always gives the same story.

Planted: Batch.pop_released() releases everything; a store that does not process what lingers behind a transaction.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from umqtt_broker.protocol.messages import RetainedMessage
from umqtt_broker.stats import Stats
from umqtt_broker.store import Store, group_commit, open_store, sqlite
from umqtt_broker.store.base import DeliveryRow
from umqtt_broker.store.change_batch import Batch
from umqtt_testkit.virtual_time import run
from umqtt_testkit.waiting import eventually_async

pytestmark = pytest.mark.tier(0)

STEPS = 300

# A message by (session, position), or a retained topic name: what must be safe.
Need = tuple[int, int] | bytes


class Disk:
    """Replaces sqlite.write_batch: one transaction at a time, when allowed to, kept in sets."""

    def __init__(self) -> None:
        self.written: set[Need] = set()
        self.messages: set[tuple[int, int]] = set()
        self._under_way: tuple[Future[list[list[DeliveryRow]]], Callable[[], list[list[DeliveryRow]]]] | None = None
        self._fail = False

    def submit(
        self, transaction: Callable[[Batch], list[list[DeliveryRow]]], batch: Batch
    ) -> Future[list[list[DeliveryRow]]]:
        """Begin a transaction, as an executor does."""
        assert self._under_way is None, "two transactions at a time"
        future: Future[list[list[DeliveryRow]]] = Future()
        self._under_way = future, lambda: transaction(batch)
        return future

    def shutdown(self) -> None:
        """Shut down, as an executor does."""
        assert self._under_way is None

    def write(self, database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
        """Replace sqlite.write_batch."""
        del database
        if self._fail:
            raise sqlite3.OperationalError("disk I/O error")
        new = {(row[0], row[1]) for row in batch.deliveries}
        assert not new & self.messages, "a message was written twice"
        self.messages |= new
        self.written |= new | set(batch.retained)
        for session, positions in batch.acknowledged.items():
            self.messages -= {(session, position) for position in positions}
        return [[] for _ in batch.pages]

    def let(self, *, fail: bool = False) -> None:
        """Let the running transaction, if any, end."""
        if self._under_way is None:
            return
        (future, transaction), self._under_way = self._under_way, None
        self._fail = fail
        try:
            future.set_result(transaction())
        except sqlite3.Error as error:
            future.set_exception(error)


class Waiter:
    """A connection: checks the order, and that everything promised is safe, when it is told to write."""

    def __init__(self, model: "Model") -> None:
        self.awaiting_commit = 0
        self.is_closed = False
        self.waits: list[tuple[bytes, set[Need]]] = []
        self._model = model

    def release(self, packets: list[bytes]) -> None:
        if self.is_closed:
            return
        packet, needs = self.waits.pop(0)
        assert [packet] == packets, "out of order"
        missing = needs - self._model.acknowledged - self._model.disk.written
        assert not missing, f"{packet!r} left before {missing} was safe"
        if self._model.rng.random() < 0.2:
            # What leaves may cause more: a will, or the packets after a CONNACK.
            self._model.rng.choice([self._model.wait, self._model.publish])()

    def commit_failed(self) -> None:
        self.is_closed = True


class Model:
    """The store, the disk, and what was requested of them."""

    def __init__(self, store: Store, disk: Disk, rng: random.Random) -> None:
        self.store, self.disk, self.rng = store, disk, rng
        self.acknowledged: set[Need] = set()
        self.recorded: set[Need] = set()
        self.unacknowledged: list[tuple[int, int]] = []
        self.waiters = [Waiter(self) for _ in range(4)]
        self._number = 0

    def publish(self) -> None:
        self._number += 1
        session, sent = self.rng.randint(1, 3), self.rng.random() < 0.8
        self.store.add_delivery((session, self._number, 1, 1, 0, sent, 0, b"t", b"x", 0))
        self.recorded.add((session, self._number))
        self.unacknowledged.append((session, self._number))

    def acknowledge(self) -> None:
        if self.unacknowledged:
            # Mostly the oldest, as clients do.
            at = 0 if self.rng.random() < 0.7 else self.rng.randrange(len(self.unacknowledged))
            session, position = self.unacknowledged.pop(at)
            self.acknowledged.add((session, position))
            self.store.remove_delivery(session, position)

    def retain(self) -> None:
        self._number += 1
        topic_name = b"%d" % self._number
        self.store.set_retained(topic_name, RetainedMessage(topic_name, b"x", 1))
        self.recorded.add(topic_name)

    def wait(self) -> None:
        self._number += 1
        at = self.rng.randrange(len(self.waiters))
        if self.waiters[at].is_closed:
            self.waiters[at] = Waiter(self)
        packet = b"%d" % self._number
        waiter = self.waiters[at]
        waiter.waits.append((packet, set(self.recorded)))
        self.store.after_commit(waiter, [packet])


async def play(store: Store, disk: Disk, rng: random.Random) -> None:
    model = Model(store, disk, rng)
    store.open(asyncio.get_running_loop(), Stats(), lambda: None)
    errors: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    for _ in range(STEPS):
        rng.choice([model.publish, model.publish, model.acknowledge, model.acknowledge, model.wait, model.retain])()
        if rng.random() < 0.4:
            await asyncio.sleep(0)
        if rng.random() < 0.15:
            disk.let(fail=rng.random() < 0.1)
        # From a moment to longer than any timer of the store.
        if rng.random() < 0.1:
            await asyncio.sleep(rng.choice([0.0005, 0.0015, 0.06, 1.1]))
        assert not errors, errors[0]

    def is_done() -> bool:
        disk.let()
        assert not errors, errors[0]
        is_waited_for = any(waiter.awaiting_commit for waiter in model.waiters)
        return not is_waited_for and disk.messages == set(model.unacknowledged)

    await eventually_async(is_done)
    for waiter in model.waiters:
        assert waiter.is_closed or not waiter.waits, "still waiting, and nothing is under way"
    closing = asyncio.ensure_future(store.close())
    await eventually_async(lambda: disk.let() or closing.done())
    await closing
    assert disk.messages == set(model.unacknowledged)


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_released_before_it_is_safe_or_out_of_order_and_nothing_is_held_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    disk = Disk()
    monkeypatch.setattr(sqlite, "write_batch", disk.write)
    monkeypatch.setattr(group_commit, "ThreadPoolExecutor", lambda *_: disk)
    run(play(open_store(str(tmp_path / "broker.db")), disk, random.Random(seed)))
