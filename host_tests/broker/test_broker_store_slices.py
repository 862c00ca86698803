"""The end of a session with a long queue: its messages are removed in slices, whatever comes in between.

Planted: one DELETE for all of them; a start that keeps what a crash left; a slice that takes messages of another
session.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from damaged_stores import TOPIC, Found, committed, payload_of
from umqtt_broker.stats import Stats
from umqtt_broker.store import Store, group_commit, open_store, sqlite
from umqtt_broker.store.base import DeliveryRow
from umqtt_broker.store.change_batch import Batch
from umqtt_testkit.waiting import eventually_async

LONG = 7 * sqlite.SLICE + 3
FEW = 10


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide the numbers of rows changed by each transaction, with no pause between transactions."""
    counted: list[int] = []
    write = sqlite.write_batch

    def count(database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
        before = database.total_changes
        pages = write(database, batch)
        counted.append(database.total_changes - before)
        return pages

    monkeypatch.setattr(sqlite, "write_batch", count)
    monkeypatch.setattr(group_commit, "_LAZY", 0)
    return counted


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = open_store(str(path))
    store.open(asyncio.get_running_loop(), Stats(), lambda: None)
    try:
        yield store
    finally:
        await store.close()


async def fill(store: Store) -> None:
    """Make session 1 with a long queue, whose first messages session 2 shares."""
    for client_id in (b"long", b"few"):
        store.new_session(client_id)
    for number in range(1, LONG + 1):
        payload = payload_of(number, 200)
        store.add_delivery((1, number, number % 65535 + 1, 1, 0, 0, 0, TOPIC, payload, 0))
        if number <= FEW:
            store.add_delivery((2, number, number, 1, 0, 0, 0, TOPIC, payload, 0))
    await committed(store)


def left(path: Path) -> tuple[int, int, int]:
    """Return the numbers of messages of session 1 and of session 2, and of shared payloads."""
    with sqlite3.connect(path) as database:
        query = "SELECT sum(session = 1), sum(session = 2), (SELECT count(*) FROM message) FROM delivery"
        return database.execute(query).fetchone()


def test_a_long_queue_goes_in_slices_that_hold_nobody_up(tmp_path: Path, changes: list[int]) -> None:
    path = tmp_path / "broker.db"

    async def play() -> None:
        async with opened(path) as store:
            await fill(store)
            changes.clear()
            store.discard_session(1)
            await committed(store)
            # The CONNACK waits for this one.
            assert changes[0] < 10
            for number in range(FEW + 1, FEW + 4):
                store.add_delivery((2, number, number, 1, 0, 0, 0, TOPIC, payload_of(number, 200), 0))
                await committed(store)
            await eventually_async(lambda: left(path)[0] == 0)
            # A shared message's row changes with each delivery, and is removed with the last.
            assert max(changes) < sqlite.SLICE + 3 * FEW

    asyncio.run(play())
    assert left(path) == (0, FEW + 3, FEW)
    assert Found(path, sessions=(2,)).queues[2][-1].payload == payload_of(FEW + 3, 200)


def test_what_a_crash_left_is_removed_after_the_next_start(
    tmp_path: Path, changes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.db"
    write = sqlite.write_batch

    def copy_and_write(database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
        # Copied in the writing thread, so that nothing changes meanwhile, as after a crash.
        if not (tmp_path / "killed").exists() and sum(changes) > LONG + FEW + sqlite.SLICE:
            shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("killed", "*-shm"))
        return write(database, batch)

    monkeypatch.setattr(sqlite, "write_batch", copy_and_write)

    async def end_and_die() -> None:
        async with opened(path) as store:
            await fill(store)
            store.discard_session(1)
            await committed(store)
            await eventually_async((tmp_path / "killed").exists)

    async def go_on(path: Path) -> None:
        async with opened(path) as store:
            # Its number is not given to another session meanwhile.
            assert store.new_session(b"new") == 3
            await eventually_async(lambda: left(path)[0] in (0, None))

    asyncio.run(end_and_die())
    killed = tmp_path / "killed" / "broker.db"
    assert 0 < left(killed)[0] < LONG
    asyncio.run(go_on(killed))
    assert left(killed) == (0, FEW, FEW)
