"""The registry of virtual boards under many readers and writers at once."""

import threading
from pathlib import Path

import pytest
from umqtt_testkit import registry

_ROUNDS = 100


def test_a_board_that_registers_is_found_however_many_look_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            registry.entries()

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(_ROUNDS):
            with registry.registered("bench", f"/dev/pts/{number}"):
                assert [entry.port for entry in registry.entries()] == [f"/dev/pts/{number}"]
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert registry.entries() == []


def test_the_end_of_a_board_whose_folder_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with registry.registered("bench", "/dev/pts/999"):
        registry.folder().rename(tmp_path / "elsewhere")
