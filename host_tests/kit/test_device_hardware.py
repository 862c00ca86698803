"""umqtt doctor --hardware: every trial runs on a board, and finds a chip that differs from the assumptions."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from cable import Cable
from umqtt_kit.device import choose, running
from umqtt_kit.doctor import hardware
from umqtt_kit.doctor.checks import Finding
from umqtt_testkit.board import VirtualBoard


@pytest.fixture(autouse=True)
def _in_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the trials: the watchdog and the sleep of a virtual board take as long as those of a real one.

    What runs here is not the firmware, so it never answers a question, however long the tool waits.
    """
    monkeypatch.setattr(running, "_ASKED_AGAIN_AFTER_S", 0.1)
    for name, value in (("_WATCHDOG_MS", 600), ("_SLEEP_MS", 600), ("_WRITES_FOR_S", 0.3), ("_FLASH_KB", 8)):
        monkeypatch.setattr(hardware, name, value)


def tried(cut: Callable[[], None] | None) -> dict[str, Finding]:
    return {finding.name: finding for finding in hardware.try_hardware(choose("bench"), cut)}


class Cut:
    """Cuts the power after some replacements were reported; meanwhile(board) runs while it is off."""

    def __init__(self, board: VirtualBoard, meanwhile: Callable[[VirtualBoard], None] = lambda board: None) -> None:
        self._board = board
        self._meanwhile = meanwhile

    def __call__(self) -> None:
        threading.Thread(target=self._cut).start()

    def _cut(self) -> None:
        self._board.wait_for("\n10")
        self._board.kill()
        self._meanwhile(self._board)
        self._board.start()


@pytest.mark.parametrize("model", ["ESP32_GENERIC", "RPI_PICO_W"])
def test_a_board_that_is_as_assumed_passes_and_runs_its_program_in_the_end(cable: Cable, model: str):
    program = b"import time\nprint('my program')\nwhile True: time.sleep_ms(10)\n"
    with cable.board(board=model, files={"main.py": program}) as board:
        found = tried(Cut(board))
        assert {name for name, finding in found.items() if finding.state == "ok"} == {
            "image", "flash", "power cut", "watchdog", "deep sleep",
        }, found  # fmt: skip
        assert found["wifi"].text == "not tried: the board has no settings"
        board.wait_for("my program")
        board.stop()
        assert not [path for path in board.files() if "umqtt" in path]


def _forget(board: VirtualBoard) -> None:
    board.install({"umqtt-try": b"3"})


def test_a_flash_that_forgets_what_was_told_is_found(cable: Cable):
    with cable.board() as board:
        found = tried(Cut(board, _forget))
    assert found["power cut"].state == "fail" and "and 3 was there afterwards" in found["power cut"].text


def test_numbers_that_were_lost_on_their_way_here_are_no_loss_of_the_flash(cable: Cable):
    """Planted: only the next number counts, although a USB port drops buffered output when the power goes."""
    with cable.board() as board:
        found = tried(Cut(board, lambda board: board.install({"umqtt-try": b"5000000"})))
    assert found["power cut"].state == "ok"


def test_a_watchdog_that_does_not_bite_is_found(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    # A watchdog that does not exist: the program continues for as long as anybody looks.
    monkeypatch.setattr(hardware.scripts, "STARVE", "import time\nprint(1)\ntime.sleep_ms({timeout_ms})")
    with cable.board():
        found = tried(None)
    assert (found["watchdog"].state, found["power cut"].state) == ("fail", "warn")
    assert "did not reset the board" in found["watchdog"].text


def test_a_sleep_that_ends_at_once_is_found(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "_SLEEP_MS", 3_000)
    with cable.board(deepsleep_s=0.5):
        found = tried(None)["deep sleep"]
    assert found.state == "fail" and "woke too early" in found.remedy


def test_a_step_that_fails_leaves_the_next_ones_their_turn(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware.scripts, "TRY_FLASH", "open('/umqtt-try.tmp', 'w').close()\nraise OSError(28)")
    with cable.board() as board:
        found = tried(None)
        board.stop()
        assert not [path for path in board.files() if "umqtt" in path]
    assert found["flash"].state == "fail" and found["watchdog"].state == "ok"


def test_the_report_is_markdown_and_nothing_happens_to_a_program_unasked(cable: Cable):
    with cable.board() as board:
        refused = cable.umqtt("doctor", "--hardware")
        assert (refused.code, refused.stderr.count("\n")) == (2, 1) and "--yes" in refused.stderr
        assert board.lives == 1
        answer = cable.umqtt("doctor", "--hardware", "--yes")
        assert answer.code == 0, answer.stderr
        head, empty, *table = answer.stdout.rstrip().split("\n")
        assert head.startswith("### Hardware report, umqtt ") and empty == ""
        assert table[1] == "|---|---|---|" and all(row.count("|") == 4 for row in table)
        values = cable.umqtt("doctor", "--hardware", "--yes", "--json").json
        assert values["ok"] and {"flash", "watchdog"} <= {check["name"] for check in values["checks"]}
