"""A log that lost its end after it was acknowledged is noticed; one torn by a power cut is not mistaken for it.

SQLite silently ends a log at the first incomplete frame. UMQTT_FULL_SWEEPS=1 makes a longer log.

Planted: a lock file that is not written after a commit; one that is written before it; a store that opens in spite of
the loss.
"""

import logging
import os
import random
import sqlite3
from pathlib import Path

import pytest
from damaged_stores import LOCK, WAL, Found, History, payload_of
from umqtt_broker import StoreError
from umqtt_broker.store import sqlite
from umqtt_broker.store.base import DeliveryRow
from umqtt_broker.store.change_batch import Batch
from umqtt_broker.store.lock import read_witness

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
SEED = int(os.environ.get("UMQTT_SEED", "1"))
COMMITS = 120 if FULL else 8
FRAME = 24 + 4096
DAMAGES = ("flipped", "zeroed", "cut")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Provide a store with a few messages per commit, all of them in its log."""
    return History(tmp_path_factory.mktemp("history"), COMMITS, each=3)


def damage(wal: Path, kind: str, at: int, chance: random.Random) -> None:
    content = bytearray(wal.read_bytes())
    if kind == "cut":
        del content[at:]
    elif kind == "zeroed":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    else:
        content[at] ^= 1 << chance.randrange(8)
    wal.write_bytes(content)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_log_damaged_at_any_frame_is_noticed_and_what_is_cut_is_counted(
    tmp_path: Path, history: History, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    frames = history.logs[-1] // FRAME
    # The first is the head of the log.
    for frame in range(-1, frames):
        at = 32 + frame * FRAME + (0 if kind == "cut" else chance.choice([0, 8, 20, 24, 700, 4119]))
        if frame < 0:
            at = chance.randrange(32)
        path = history.copy(tmp_path / "copy")
        damage(path.with_name(WAL), kind, at, chance)
        if path.with_name(WAL).read_bytes() == (history.folder / WAL).read_bytes():
            continue  # the zeroed bytes were zeros before
        where = f"{kind} at byte {at}, frame {frame}, seed {SEED}"
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        with pytest.raises(StoreError) as refused:
            Found(path)
        # A refused store is left unchanged, for somebody to inspect.
        after = {name: path.with_name(name).read_bytes() for name in before}
        assert before == after, where
        caplog.clear()
        with caplog.at_level(logging.ERROR, "umqtt_broker.store"):
            found = Found(path, accept_loss=True)
        # The remaining messages are the oldest ones, and those reported as cut are those that are missing.
        left = len(found.payloads)
        assert found.payloads == [payload_of(number) for number in range(1, left + 1)], where
        cut = f"which stored {history.messages - left} messages"
        assert cut in str(refused.value) and "\n" not in str(refused.value), (where, str(refused.value))
        assert [cut in record.message for record in caplog.records] == [True], where
        # The loss is reported only once.
        assert len(Found(path).payloads) == left, where


@pytest.mark.parametrize("kind", ["emptied", "removed"])
def test_a_log_that_is_gone_is_noticed(tmp_path: Path, history: History, kind: str) -> None:
    path = history.copy(tmp_path / "copy")
    if kind == "emptied":
        path.with_name(WAL).write_bytes(b"")
    else:
        path.with_name(WAL).unlink()
    with pytest.raises(StoreError, match=f"lost its last {COMMITS + 1} commits, which stored {history.messages} mess"):
        Found(path)
    assert Found(path, accept_loss=True, sessions=()).recovered.sessions == []


def test_a_power_cut_at_any_byte_of_a_commit_is_no_alarm(tmp_path: Path, history: History) -> None:
    """The log has all that was synced and any part of the rest; the lock file is current or of any earlier time."""
    chance = random.Random(SEED)
    whole = (history.folder / WAL).read_bytes()
    for commit in range(COMMITS):
        path = history.copy(tmp_path / "copy")
        safe, end = history.logs[commit : commit + 2]
        torn = bytearray(whole[safe:end])
        # Its pages reach the disk in any order.
        for at in range(0, len(torn), 512):
            if chance.random() < 0.3:
                torn[at : at + 512] = bytes(512)
        tail = bytes(torn)[: chance.randrange(len(torn))] if chance.random() < 0.5 else bytes(torn)
        path.with_name(WAL).write_bytes(whole[:safe] + tail)
        path.with_name(LOCK).write_bytes(history.witnesses[chance.randrange(commit + 1)])
        assert len(Found(path).payloads) >= commit * history.each, f"commit {commit}, seed {SEED}"


def test_a_store_whose_lock_file_is_gone_or_torn_opens(tmp_path: Path, history: History) -> None:
    for content in (None, b"", b"\xff" * 28, history.witnesses[-1][:-1]):
        path = history.copy(tmp_path / "copy")
        path.with_name(LOCK).unlink()
        if content is not None:
            path.with_name(LOCK).write_bytes(content)
        assert len(Found(path).payloads) == history.messages


def test_the_lock_file_is_never_ahead_of_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    write = sqlite.write_batch

    def look_and_write(database: sqlite3.Connection, batch: Batch) -> list[list[DeliveryRow]]:
        witness = read_witness(str(tmp_path / "a" / "broker.db"))
        assert witness is not None
        pages = write(database, batch)
        ahead.append(witness.commits - database.execute("SELECT commits FROM broker").fetchone()[0])
        return pages

    monkeypatch.setattr(sqlite, "write_batch", look_and_write)
    assert History(tmp_path / "a", 3).witnesses
    assert ahead == [-1, -1, -1, -1]
