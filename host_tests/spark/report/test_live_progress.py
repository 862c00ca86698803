"""What a user of `umqtt ingest` sees on a terminal, in a pipe, and without colours: real terminals, a fake pipeline.

UMQTT_FULL_SWEEPS=1 also starts the real one.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from own_session import run_pipeline
from proof.needs import needs_java
from spark_helpers import fill, record
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.run.panel import line

_PROGRAM = Path(__file__).with_name("live_on_a_pty.py")
_STEPS = "4"
# The pipeline, which ends with exit code `code`.
_RUN = "import sys; from spark_ingest.pipeline.run.command import main; sys.exit(main(sys.argv[1:]) != {code})"


class Screen:
    """The part of a terminal that the panel uses: lines, cursor up, erase line."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for code, count, letter, character in re.findall(r"(\x1b\[\??(\d*)[\d;]*([A-Za-z]))|(.)", text, re.S):
            if code:
                self._command(int(count or 1), letter)
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._row += 1
                self.rows += [""] * (self._row + 1 - len(self.rows))
            else:
                row = self.rows[self._row].ljust(self._column)
                self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
                self._column += 1

    def _command(self, count: int, letter: str) -> None:
        if letter == "A":
            self._row = max(0, self._row - count)
        elif letter == "K":
            self.rows[self._row] = ""
        else:
            assert letter in "mhl", f"the test's terminal does not know {letter}"


def on_a_terminal(*command: object, stdout_too: bool = True, **environment: str) -> tuple[str, str, str]:
    """Return what the command wrote to the terminal, the final screen, and its standard output if that is a pipe."""
    arguments = [str(one) for one in command or (_PROGRAM, _STEPS)]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
        env=keep | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux's sign that nobody has the other end open any more.
            break
        if not data:
            break
        written += data
    os.close(ours)
    out = process.communicate(timeout=WAIT_LIMIT_S)[0]
    assert process.returncode == 0, written
    screen = Screen()
    screen.feed(written.decode())
    return written.decode(), "\n".join(row.rstrip() for row in screen.rows).strip(), (out or b"").decode()


def test_a_terminal_shows_one_panel_with_ready_and_remarks_above_it_and_the_last_state_left_standing() -> None:
    """Planted: rows_silver, which this start has appended, for the rows that silver has."""
    written, screen, _ = on_a_terminal()
    before, _, rest = screen.partition("╭")
    above = ["umqtt ingest: starting Spark", "ready", "a remark from the pipeline", "umqtt ingest stopped", ""]
    assert [one.rstrip() for one in before.split("\n")] == above
    panel, _, after = rest.partition("╰")
    assert "╭" not in rest, "an old table was left on the screen"
    assert json.loads(after.splitlines()[-1]) == {"state": "stopped"}
    words = " ".join(panel.replace("│", " ").split())
    for figure in (
        "messages 12,345",
        "lag 52.3 kB",
        "last batch ms 187",
        "rows in silver 12,321",
        "quarantined 7",
        "duplicates 17",
    ):
        assert figure in words, panel
    assert "open gaps 2" in words and "open alerts 1" in words and "gold update ms 41" in words
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "the cursor is shown again"


def test_standard_output_in_a_pipe_holds_ready_and_the_result_alone() -> None:
    written, screen, out = on_a_terminal(stdout_too=False)
    assert out == 'ready\n{"state": "stopped"}\n'
    assert "ready" not in screen and "stopped" in screen and "╭" in written


def test_no_color_leaves_the_panel_without_colours() -> None:
    coloured, _, _ = on_a_terminal()
    assert re.search(r"\x1b\[[\d;]*3[0-7]m", coloured)
    plain, screen, _ = on_a_terminal(NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*[34][0-8][;m]", plain)
    assert "stopped" in screen


@pytest.mark.parametrize("how", ["a pipe", "a dumb terminal"])
def test_where_no_cursor_moves_there_are_plain_lines(how: str) -> None:
    if how == "a pipe":
        done = subprocess.run([sys.executable, str(_PROGRAM), _STEPS], capture_output=True, text=True, check=True)
        assert done.stdout == 'ready\n{"state": "stopped"}\n'
        text = done.stderr
    else:
        text = on_a_terminal(TERM="dumb")[0].replace("\r\n", "\n")
    assert "\x1b" not in text and "╭" not in text
    lines = [one for one in text.splitlines() if one.startswith("ingest ")]
    assert len(lines) == len(set(lines)) >= 2, "no line that says nothing new"
    assert re.fullmatch(
        r"ingest running, messages [\d,]+, lag 52\.3 kB, rows in silver [\d,]+, last batch ms 187, "
        r"messages/s in it 5,347, duplicates 0, quarantined 0, open gaps 0",
        lines[-2],
    ), lines
    assert lines[-1].startswith("ingest stopped, messages 12,345, ") and "open alerts 1" in lines[-1]


@pytest.mark.skipif(not os.environ.get("UMQTT_FULL_SWEEPS"), reason="a full sweep: set UMQTT_FULL_SWEEPS=1")
def test_the_command_itself_on_a_terminal_shows_what_it_stored(tmp_path: Path) -> None:
    try:
        require_java()
    except MissingDependency as error:
        pytest.skip(str(error))
    groups = [[record("pump", "1-a", seq) for seq in range(50)] + [b"corrupt"], [record("pump", "1-a", 7)]]
    fill(tmp_path / "spool" / "north", groups)
    folders = [part for name in ("spool", "tables", "checkpoint") for part in (f"--{name}", tmp_path / name)]
    written, screen, _ = on_a_terminal("-m", "umqtt_cli", "ingest", *folders, "--once", "--json")
    *_, said = screen.splitlines()
    assert json.loads(said)["rows_silver"] == 50
    words = " ".join(screen.replace("│", " ").split())
    assert "\nready\n" in f"\n{screen}" and screen.count("╭") == 1 and "starting Spark" in written
    assert "messages 52" in words
    for figure in ("rows in silver 50", "quarantined 1", "duplicates 1", "open gaps 0", "lag 0 bytes"):
        assert figure in words, screen


@needs_java
def test_rows_in_silver_are_those_that_silver_has_after_a_start_that_appends_to_them(
    spark, tmp_path: Path, capsys
) -> None:
    """Planted: the rows that this start has appended."""
    where = [part for name in ("spool", "tables", "checkpoint") for part in (f"--{name}", tmp_path / name)]
    told: list[tuple[int, int]] = []
    for start in (0, 5, 5):
        if len(told) < 2:
            fill(tmp_path / "spool" / "north", [[record("pump", "1-a", start + seq) for seq in range(5)]])
        assert run_pipeline(spark, *where, "--once", "--json", "--no-gold") == 0
        status = json.loads(capsys.readouterr().out.splitlines()[-1])
        told.append((status["rows_silver"], status["rows_in_silver"]))
        assert "rows in silver 1" in line(status) or len(told) == 1
    assert told == [(5, 5), (5, 10), (0, 10)]


def test_a_start_that_fails_leaves_its_error_alone_on_the_screen(tmp_path: Path) -> None:
    folders = [part for name in ("tables", "checkpoint") for part in (f"--{name}", tmp_path / name)]
    _, screen, _ = on_a_terminal("-c", _RUN.format(code=2), "--spool", tmp_path / "none", *folders)
    *before, last = screen.splitlines()
    assert last == f"pipeline: the spool folder {tmp_path / 'none'} does not exist: give the collector's --spool"
    assert before == ["umqtt ingest: starting Spark"]


def test_a_status_without_figures_still_makes_a_line() -> None:
    assert line({"state": "running"}).startswith("ingest running, messages -, lag -, rows in silver -")
