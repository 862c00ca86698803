"""Stores as a crash leaves them, with every commit known, and what is found in them when they are opened."""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from umqtt_broker.protocol.messages import RetainedMessage
from umqtt_broker.stats import Stats
from umqtt_broker.store import Store, open_store
from umqtt_broker.store.base import DeliveryRow, Recovered

TOPIC = b"fleet/pump-7/temperature"
WAL, LOCK = "broker.db-wal", "broker.db.lock"


def payload_of(number: int, size: int = 64) -> bytes:
    """Return a payload filled with its number from end to end."""
    return (b"%06d " % number * (size // 7 + 1))[:size]


class History:
    """A store that made `commits` commits of `each` messages for session 1, and its state after each commit.

    logs: bytes of the log that were safe. witnesses: contents of the lock file. folder: the files as kill -9 leaves
    them.
    """

    def __init__(self, folder: Path, commits: int, each: int = 1, retained: int = 0) -> None:
        self.folder = folder / "killed"
        self.logs: list[int] = []
        self.witnesses: list[bytes] = []
        self.each, self.messages = each, commits * each
        folder.mkdir(exist_ok=True)
        asyncio.run(self._make(folder / "broker.db", commits, retained))

    async def _make(self, path: Path, commits: int, retained: int) -> None:
        store = open_store(str(path))
        store.open(asyncio.get_running_loop(), Stats(), lambda: None)
        store.new_session(b"keeper")
        store.set_subscription(1, b"#", 1)
        for number in range(retained):
            name = b"state/%d" % number
            store.set_retained(name, RetainedMessage(name, payload_of(number), 1))
        await committed(store)
        self._note(path)
        for commit in range(commits):
            for number in range(commit * self.each + 1, (commit + 1) * self.each + 1):
                store.add_delivery((1, number, number, 1, 0, 0, 0, TOPIC, payload_of(number), 0))
            await committed(store)
            self._note(path)
        self.folder.mkdir()
        for file in path.parent.glob("broker.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, self.folder)
        await store.close()

    def _note(self, path: Path) -> None:
        self.logs.append(path.with_name(WAL).stat().st_size)
        self.witnesses.append(path.with_name(LOCK).read_bytes())

    def copy(self, to: Path) -> Path:
        """Copy the files of the killed broker. Returns the path of the store."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder, to)
        return to / "broker.db"


async def committed(store: Store) -> None:
    """Wait until everything recorded is safe."""
    safe = asyncio.Event()

    class Sleeper:
        def on_commit(self) -> None:
            safe.set()

    store.wake(Sleeper())
    await safe.wait()


class Found:
    """What a store contains when a broker opens it, with the queues of these sessions. Raises StoreError."""

    def __init__(self, path: Path, accept_loss: bool = False, sessions: Iterable[int] = (1,)) -> None:
        self.stats = Stats()
        self.recovered: Recovered
        self.queues: dict[int, list[DeliveryRow]] = {}
        asyncio.run(self._read(open_store(str(path), accept_loss), sessions))

    async def _read(self, store: Store, sessions: Iterable[int]) -> None:
        self.recovered = store.open(asyncio.get_running_loop(), self.stats, lambda: None)
        try:
            for number in sessions:
                rows: list[DeliveryRow] = self.queues.setdefault(number, [])
                while True:
                    page: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    store.load_page(number, rows[-1].position if rows else 0, 1000, page.set_result)
                    found = await page
                    rows += found
                    if len(found) < 1000:
                        break
        finally:
            await store.close()

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads of session 1, in order."""
        return [row.payload for row in self.queues[1]]
