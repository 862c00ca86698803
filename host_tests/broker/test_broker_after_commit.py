"""Actions that wait for a commit: random recording, acknowledging, committing and failing against a plain model.

Time is virtual, and transactions end when the test says so: a seed always gives the same story.

With a store that brokers share, the more so: what leaves has waited for a transaction that began later, though it wrote
nothing.

Planted: Batch.pop_released() releases everything; a store that does not process what lingers behind a transaction; one
that is shared, and lets those wait for the transaction under way who come meanwhile.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from umqtt_broker.errors import StoreError
from umqtt_broker.protocol.messages import RetainedMessage
from umqtt_broker.stats import Stats
from umqtt_broker.store import Store, group_commit
from umqtt_broker.store.base import DeliveryRow, Recovered
from umqtt_broker.store.change_batch import Batch
from umqtt_broker.store.group_commit import GroupCommitStore, Opened
from umqtt_testkit.virtual_time import run
from umqtt_testkit.waiting import eventually_async

pytestmark = pytest.mark.tier(0)

STEPS = 300

# A message by (session, position), or a retained topic name: what must be safe.
Need = tuple[int, int] | bytes


class Disk:
    """A backend and the thread it writes in: one transaction at a time, when allowed to, kept in sets.

    begun: how many transactions were given to it.
    """

    name = "disk"

    def __init__(self, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.written: set[Need] = set()
        self.messages: set[tuple[int, int]] = set()
        self.begun = 0
        self._under_way: tuple[Future[list[list[DeliveryRow]]], Callable[[], list[list[DeliveryRow]]]] | None = None
        self._fail = False

    def submit(
        self, transaction: Callable[[Batch], list[list[DeliveryRow]]], batch: Batch
    ) -> Future[list[list[DeliveryRow]]]:
        """Begin a transaction, as an executor does."""
        assert self._under_way is None, "two transactions at a time"
        self.begun += 1
        future: Future[list[list[DeliveryRow]]] = Future()
        self._under_way = future, lambda: transaction(batch)
        return future

    def shutdown(self) -> None:
        """Shut down, as an executor does."""
        assert self._under_way is None

    def acquire(self) -> str:
        return ""

    def open(self) -> Opened:
        return Opened(Recovered([], [], {}, []), 1, 1)

    def close(self) -> None:
        pass

    def write(self, batch: Batch) -> list[list[DeliveryRow]]:
        if self._fail:
            raise StoreError("disk I/O error")
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
        except StoreError as error:
            future.set_exception(error)


class Waiter:
    """A connection: checks the order, and that everything promised is safe, when it is told to write."""

    def __init__(self, model: "Model") -> None:
        self.awaiting_commit = 0
        self.is_closed = False
        # Each packet, with what must be safe by then, and how many transactions had begun.
        self.waits: list[tuple[bytes, set[Need], int]] = []
        self._model = model

    def release(self, packets: list[bytes]) -> None:
        if self.is_closed:
            return
        packet, needs, begun = self.waits.pop(0)
        assert [packet] == packets, "out of order"
        assert not self._model.disk.is_shared or self._model.disk.begun > begun, f"{packet!r} left without a look"
        missing = needs - self._model.acknowledged - self._model.disk.written
        assert not missing, f"{packet!r} left before {missing} was safe"
        if self._model.rng.random() < self._model.share_causing:
            # What leaves may cause more: a will, or the packets after a CONNACK.
            self._model.rng.choice([self._model.wait, self._model.publish])()

    def commit_failed(self) -> None:
        self.is_closed = True


class Model:
    """The store, the disk, and what was requested of them.

    share_sent: part of the messages that are on their way at once. share_causing: part of the packets that cause more.
    """

    share_sent = 0.8
    share_causing = 0.2

    def __init__(self, store: Store, disk: Disk, rng: random.Random) -> None:
        self.store, self.disk, self.rng = store, disk, rng
        self.acknowledged: set[Need] = set()
        self.recorded: set[Need] = set()
        self.unacknowledged: list[tuple[int, int]] = []
        self.waiters = [Waiter(self) for _ in range(4)]
        self._number = 0

    def publish(self) -> None:
        self._number += 1
        session, sent = self.rng.randint(1, 3), self.rng.random() < self.share_sent
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
        waiter.waits.append((packet, set(self.recorded), self.disk.begun))
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


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(request.param)
    monkeypatch.setattr(group_commit, "ThreadPoolExecutor", lambda *_: disk)
    return disk


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_released_before_it_is_safe_or_out_of_order_and_nothing_is_held_for_ever(
    disk: Disk, seed: int
) -> None:
    run(play(GroupCommitStore(disk), disk, random.Random(seed)))


def test_a_message_that_is_acknowledged_at_once_is_never_written_though_others_wait(disk: Disk) -> None:
    """Planted: GroupCommitStore._confirm() schedules the open batch; _batch_to_await() schedules nothing; close()
    adds no barrier."""

    async def settle() -> None:
        # No time passes here.
        for _ in range(20):
            disk.let()
            await asyncio.sleep(0)

    async def play() -> None:
        store = GroupCommitStore(disk)
        store.open(asyncio.get_running_loop(), Stats(), lambda: None)
        await settle()
        model = Model(store, disk, random.Random(1))
        model.share_sent, model.share_causing = 1, 0
        for count in range(100):
            for _ in range(count % 4):
                model.publish()
                model.wait()
            while model.unacknowledged:
                model.acknowledge()
                await asyncio.sleep(0)
            model.wait()
            await settle()
            assert not any(waiter.waits for waiter in model.waiters)
        assert disk.written == set()
        # Those who wait when the broker ends get their answer.
        closing = asyncio.ensure_future(store.close())
        model.wait()
        await settle()
        assert closing.done() and not any(waiter.waits for waiter in model.waiters)

    run(play())
