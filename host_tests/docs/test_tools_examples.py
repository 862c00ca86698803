"""The commands of docs/tools.md, run in their order on a virtual board, print what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from broker_here import broker_here
from kit_command import umqtt_here
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.registry import registered

pytestmark = pytest.mark.tier(2)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def sessions(page: str) -> list[tuple[str, list[str]]]:
    """Return (command, lines that it prints) of each `console` block; blocks marked `norun` need hardware."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def prints(line: str) -> re.Pattern[str]:
    """Return a pattern of the line; a space matches any space, an ellipsis anything."""
    parts = [r"\s+".join(re.escape(word) for word in part.split()) for part in line.split("…")]
    return re.compile(".*".join(parts))


def test_the_page_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = PAGE.read_text()
    values = json.loads(re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    # The page means its own board, whatever is plugged in here.
    monkeypatch.setenv("UMQTT_DEVICE", "bench")
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with broker_here() as port:
        # A separate broker replaces the one at the page's port 1883.
        values["settings"]["brokers"] = [f"mqtt://127.0.0.1:{port}"]
        file = tmp_path / "pump-7.json"
        file.write_text(json.dumps(values))
        file.chmod(0o600)
        with VirtualBoard(tmp_path / "bench.img") as board, registered("bench", board.port):
            board.start()
            for command, expected in sessions(page):
                _run_and_compare(command, expected, tmp_path)


def _run_and_compare(command: str, expected: list[str], folder: Path) -> None:
    program, *arguments = command.split()
    assert program == "umqtt"
    done = umqtt_here(folder, *arguments)
    assert done.code == 0, f"{command}: {done.stderr}"
    for line in expected:
        assert prints(line).search(done.stdout), f"{command} does not print {line!r}, but:\n{done.stdout}"
