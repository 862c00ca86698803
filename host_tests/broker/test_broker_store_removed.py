"""A store whose file is emptied or removed is missed, and its log is kept; one removed with its lock file is not.

Planted: a refusal that promises that something can be read of any file; find_loss() that says None for an empty or a
missing file; a database opened to look although it is empty, whose log SQLite then deletes; an export that leaves the
witness of the store that it has moved.
"""

import logging
from pathlib import Path

import pytest
from broker_peer import run_broker
from damaged_stores import LOCK, WAL, Found, History, payload_of
from umqtt_broker import StoreError
from umqtt_broker.store import backup
from umqtt_broker.store.check import check, check_openable

from umqtt_cli.__main__ import run

COMMITS = 5


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Provide a store with a few messages per commit, all of them in its log."""
    return History(tmp_path_factory.mktemp("history"), COMMITS, each=3)


def damage(path: Path, kind: str) -> None:
    if kind == "removed":
        path.unlink()
    else:
        path.write_bytes({"emptied": b"", "one byte": b"?", "text": b"no database " * 1000}[kind])


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("kind", ["emptied", "removed"])
def test_a_store_that_is_gone_is_missed_and_every_command_leaves_its_log_alone(
    tmp_path: Path, history: History, kind: str, has_log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = history.copy(tmp_path / "copy")
    damage(path, kind)
    if not has_log:
        path.with_name(WAL).unlink()
    before = content(path.parent)
    lost = f"counts {COMMITS + 1} commits since the last start of its broker, which stored {history.messages} messages"
    with pytest.raises(StoreError, match=lost) as refused:
        Found(path)
    assert "--accept-loss" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(StoreError, match=lost):
        check_openable(str(path))
    assert lost in check(str(path))[0]
    assert run(["store", "check", "--store", str(path)]) == 1
    for command in (backup.info, lambda store: backup.backup(store, str(tmp_path / "backup.db"))):
        with pytest.raises(StoreError):
            command(str(path))
    assert content(path.parent) == before
    with caplog.at_level(logging.ERROR, "umqtt_broker.store"):
        found = Found(path, accept_loss=True)
    assert lost in caplog.records[0].message
    # All that this store has ever had is in its log.
    left = history.messages if has_log else 0
    assert found.payloads == [payload_of(number) for number in range(1, left + 1)]
    kept = list(path.parent.glob("broker.db.damaged-*-wal"))
    assert [file.read_bytes() for file in kept] == ([before[WAL]] if has_log else [])
    assert len(Found(path).payloads) == left


@pytest.mark.parametrize("kind", ["one byte", "text"])
def test_a_file_that_is_no_database_is_refused_and_with_a_lock_file_replaced_if_told(
    tmp_path: Path, history: History, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = history.copy(tmp_path / "copy")
    path.with_name(WAL).unlink()
    damage(path, kind)
    before = content(path.parent)
    with pytest.raises(StoreError, match=rf"file is not a database.*counts {COMMITS + 1} commits.*--accept-loss"):
        Found(path)
    with pytest.raises(StoreError, match="file is not a database"):
        check_openable(str(path))
    assert "file is not a database" in check(str(path))[0]
    assert content(path.parent) == before
    with caplog.at_level(logging.ERROR, "umqtt_broker.store"):
        assert Found(path, accept_loss=True).payloads == []
    assert "nothing can be read, so it begins empty" in caplog.records[0].message
    (kept,) = path.parent.glob("broker.db.damaged-*")
    assert kept.read_bytes() == before[path.name]
    # Without a lock file nothing says that the file is the broker's.
    other = tmp_path / "other.db"
    damage(other, kind)
    for accept_loss in (False, True):
        with pytest.raises(StoreError, match="file is not a database") as refused:
            Found(other, accept_loss)
        assert "--accept-loss" not in str(refused.value)


def test_the_log_of_an_emptied_store_is_kept_without_a_lock_file_too(tmp_path: Path, history: History) -> None:
    path = history.copy(tmp_path / "copy")
    damage(path, "emptied")
    path.with_name(LOCK).unlink()
    log = path.with_name(WAL).read_bytes()
    with pytest.raises(StoreError, match=r"empty, but its log .*broker.db-wal is not.*--accept-loss"):
        Found(path)
    assert "is not" in check(str(path))[0]
    assert path.with_name(WAL).read_bytes() == log
    assert len(Found(path, accept_loss=True).payloads) == history.messages


def test_a_store_removed_with_its_lock_file_is_a_new_one(tmp_path: Path, history: History) -> None:
    path = history.copy(tmp_path / "copy")
    path.unlink()
    with pytest.raises(StoreError) as refused:
        Found(path)
    # The message names the files to remove.
    remove = str(refused.value).partition("on purpose, remove ")[2].removesuffix(" too").split(" and ")
    for name in remove:
        Path(name).unlink()
    assert list(path.parent.iterdir()) == []
    check_openable(str(path))
    assert Found(path, sessions=()).recovered.sessions == []


def test_a_restored_backup_takes_the_place_of_a_store_that_is_gone(tmp_path: Path, history: History) -> None:
    path = history.copy(tmp_path / "copy")
    backup.backup(str(path), str(tmp_path / "nightly.db"))
    path.unlink()
    backup.restore(str(tmp_path / "nightly.db"), str(path))
    assert len(Found(path).payloads) == history.messages


@pytest.mark.parametrize("kind", ["emptied", "removed"])
def test_the_program_says_so_in_one_line(tmp_path: Path, history: History, kind: str) -> None:
    path = history.copy(tmp_path / "copy")
    damage(path, kind)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"allow_anonymous true\nlistener 0\npersistence true\npersistence_location {path.parent}\n")
    conf.write_text(conf.read_text() + f"persistence_file {path.name}\n")
    for arguments in (("-c", str(conf)), ("-c", str(conf), "--test-config")):
        result = run_broker(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1 and f"stored {history.messages} messages" in result.stderr, result.stderr
