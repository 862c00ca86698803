"""Text chosen by devices, brokers and clients never reaches a terminal unescaped, however it is printed."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import umqtt_kit
from umqtt_kit.commands import brokers, cmd, devices, doctor, logs, sub
from umqtt_kit.doctor.checks import FAIL, Finding
from umqtt_kit.logs import published
from umqtt_kit.logs.entries import Entry
from umqtt_kit.logs.lines import Lines
from umqtt_kit.ota.release import check_version

import spark_ingest
import umqtt_cli
from spark_ingest.cli import spool
from spark_ingest.collector.journal import Journal
from spark_ingest.pipeline.decode.record import BadRecord, parse
from spark_ingest.spool.messages import Message
from spark_ingest.spool.properties import Properties
from umqtt_cli import __main__ as kit_main
from umqtt_cli.console import emit, emit_json, live_display, notes, print_result, progress_bar, results, say, table
from umqtt_cli.escape import remark

HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;owned\x07",
    "links elsewhere": "\x1b]8;;http://example.com\x1b\\here\x1b]8;;\x1b\\",
    "one-byte CSI": "\x9b31mred",
    "writes over the line": "good\rbad\x08\x08",
    "forges a line": "x\numqtt: everything is fine",
    "other line ends": "x\u2028y\u2029z\x85\x0b\x0c",
    "turns the text around": "gpj.\u202eexe",
    "hides": "a\u200bb\ufeff\xad",
    "null and delete": "\0\x7f",
    "is no character": "\udc9b31m \ud800",
    "markup of the tools": "[red]x[/red] [/] [link=http://example.com]y[/link] :skull:",
}


def command(name: str, result: Any) -> None:
    for line in cmd._lines(name, result):
        print_result(line)


def logged(entry: Entry) -> None:
    logs._printer(0)(entry)


def from_broker(leaf: str, record: object, device: str = "pump") -> None:
    logged(published.entry_of(f"fleet/{device}/{leaf}", json.dumps(record).encode()))


def one_line(text: str) -> str:
    """Return the text on one line, for output that has lines of its own, such as a traceback."""
    return " ".join(text.splitlines())


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def serial(text: str) -> None:
    for entry in Lines("ttyACM0").take(raw(text).replace(b"\n", b"\r") + b"\n", datetime.now(UTC)):
        logged(entry)


def board(text: str) -> dict[str, object]:
    info = {"version": text, "app_version": text, "device_id": text}
    return {"name": text, "path": text, "board": text, "boards": [], "info": info, "problem": text}


def refused(text: str) -> None:
    try:
        cmd_result({"ok": False, "result": text})
    except Exception as error:  # noqa: BLE001 - whatever the command makes of it is printed like this
        kit_main._say(f"umqtt: {error}")


def cmd_result(reply: dict[str, object]) -> object:
    from umqtt_kit.device_commands import result_of

    return result_of(reply, "pump", "get")


def journal(text: str) -> None:
    Journal(as_text=True).event("north", "lost", text)


def quarantined(text: str) -> None:
    whole = {"v": 1, "id": "a", "boot": "b", "seq": 1, "m": {text: text}}
    for fields in ({"v": text}, {"v": 1, "id": text * 99}, whole):
        try:
            print(parse(json.dumps(fields).encode()).refused)
        except BadRecord as error:
            print(error)


OUTPUTS: dict[str, Callable[[str], object]] = {
    "say": say,
    "print_result": print_result,
    "emit": emit,
    "emit_json": lambda text: emit_json({text: text}),
    "an error": lambda text: kit_main._say(f"umqtt: {text}"),
    "a console of results": lambda text: results().print(one_line(text), soft_wrap=True),
    "a console of notes": lambda text: notes().print(one_line(text), soft_wrap=True),
    "a remark": remark,
    "an event of the collector": journal,
    "a reason of quarantine": quarantined,
    "cmd get": lambda text: command("get", {text: text}),
    "cmd get KEY": lambda text: command("get", {"key": text, "value": text}),
    "cmd get, nested": lambda text: command("get", {"a": [text, {text: text}]}),
    "cmd set": lambda text: command("set", {"key": text, "value": [text], "applies": text}),
    "cmd ping, text": lambda text: command("ping", text),
    "cmd log": lambda text: command("log", {"lines": [text, [text]]}),
    "cmd read, a folder": lambda text: command("read", {"entries": [[text, None], [text, 5], [text, text]]}),
    "cmd crash": lambda text: command("crash", {"n": 1, text: text, "traceback": one_line(text)}),
    "cmd, refused": refused,
    "logs, text": lambda text: logged(published.entry_of("fleet/pump/log", raw(text))),
    "logs, a record": lambda text: from_broker("log", {"level": text, "text": text, "crash": one_line(text)}),
    "logs, status": lambda text: from_broker("status", {"online": True, "reason": text, "fw": text, "boot": text}),
    "logs, a topic": lambda text: from_broker("log", {"text": "x"}, device=text),
    "logs, a cable": serial,
    "sub": lambda text: emit(sub._text(sub._FIELDS, "text", text, raw(text), 0, False)),
    "sub --json": lambda text: emit_json(sub._values(text, raw(text), 0, False)),
    "spool cat": lambda text: print(spool._as_text(Message(0, 0, 0, text, raw(text), 0, False, False))),
    "spool cat, properties": lambda text: print(spool._as_text(Message(0, 0, 0, "t", b"", 0, False, False, Properties(
        [(text, raw(text))], 1, 1, text, text, raw(text), [1], raw(text))))),
    "doctor": lambda text: doctor._show(Finding(text, FAIL, text, text)),
    "brokers": lambda text: brokers._show([{**dict.fromkeys(brokers._FIGURES), "broker": text, "up": False,
                                            "problem": text}]),
    "devices": lambda text: devices._show([board(text), board(text) | {"info": None}], [dict.fromkeys(
        ("chip", "path", "model"), text)]),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_way_out_obeys_what_others_say(output: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted: one of the ways prints its text unescaped."""
    OUTPUTS[output]("x")
    plain = capsys.readouterr()
    OUTPUTS[output](HOSTILE[what])
    shown = capsys.readouterr()
    for before, after in ((plain.out, shown.out), (plain.err, shown.err)):
        lines = after.split("\n")
        # JSON's encoder leaves DEL unescaped, which moves no cursor.
        harmless = "[\t\x7f]" if "json" in output else "\t"
        assert [line for line in lines if not re.sub(harmless, "", line).isprintable()] == []
        # The cells of a table are wrapped.
        is_table = output in ("devices", "brokers")
        assert is_table or len(lines) <= len(before.split("\n")), f"a line was forged in {after!r}"
    assert shown.out or shown.err


_WAYS = re.compile(r"(click\.s?echo|(?<![.\w])print|sys\.std\w+\.write)\(|from rich\.console import Console$", re.M)
# One JSON value; and `umqtt spool cat`, which does not flush each line, and is in OUTPUTS.
_ALLOWED = re.compile(r"click\.echo\(\s*json\.dumps\(|sys\.stdout\.write\(\(_as_json\(view, message\)")


def test_the_tools_print_by_the_ways_of_their_console_alone() -> None:
    """Planted: a command calls click.echo() with a text."""
    kit, cli, ours = (Path(one.__file__).parent for one in (umqtt_kit, umqtt_cli, spark_ingest))
    own = {"console.py", "__main__.py", "entry.py", "escape.py"}  # entry.py runs where the console cannot be imported
    found = []
    files = (sorted(folder.rglob("*.py")) for folder in (kit, cli, ours / "cli", kit.parent / "umqtt_broker/cli"))
    for file in itertools.chain(*files):
        # The quoted programs in these files run on a board, or on another Python.
        if file.name in own or file.name in ("scripts.py", "sizes.py"):
            continue
        text = re.sub(r'"""(?s:.*?)"""|f?"(?:[^"\\\n]|\\.)*"', '""', file.read_text())
        for match in _WAYS.finditer(text):
            line = text[match.start() : match.start() + 80]
            if not _ALLOWED.match(line):
                found.append(f"{file}: {line}")
    assert found == []


def test_the_ingester_writes_to_standard_error_by_remark_alone() -> None:
    """Planted: a report that prints its line itself."""
    folder = Path(spark_ingest.__file__).parent
    files = sorted(folder.rglob("*.py"))
    assert [str(file.relative_to(folder)) for file in files if "file=sys.stderr" in file.read_text()] == []


@pytest.mark.parametrize("version", ["", " 1.0", "1.0\n", "1.0\x1b[2J", "1 0", "é", "1" * 41])
def test_a_version_is_one_printable_word_since_the_first_line_of_a_manifest_is_it(version: str) -> None:
    """Planted: str.split() takes a line end and an escape sequence for nothing, or for part of the word."""
    with pytest.raises(ValueError, match="at most 40 printable ASCII characters without spaces"):
        check_version(version)
    check_version("1.0-rc.1+pump")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_live_display_is_escaped_and_lines_are_printed_above_it(monkeypatch):
    """Planted: a line goes to a console of its own, and is mixed with the display."""
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with live_display() as show:
        assert show is not None
        show(table(("device",), [(HOSTILE["clears the screen"],)]))
        say("one")
        say("two")
    shown = terminal.getvalue()
    assert re.search(r"one\n.*\x1b\[2Ktwo\n", shown, re.DOTALL), shown
    assert r"\x1b[2J\x1b[H" in shown and HOSTILE["clears the screen"] not in shown


def test_without_a_terminal_there_is_no_live_display(capsys):
    with live_display() as show, progress_bar("sent", 3) as add:
        add(advance=3, description="x")
    assert show is None and capsys.readouterr() == ("", "")
