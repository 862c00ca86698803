"""A command runs no Python file of the folder it stands in; end_to_end/test_demo.py shows it of the whole chain."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import terminals
from cable import Cable
from foreign_folder import Foreign
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
UMQTT = str(Path(sys.executable).with_name("umqtt"))


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


def test_the_planted_files_would_be_imported(foreign: Foreign) -> None:
    """The check itself: Python in its usual mode imports them."""
    subprocess.run([sys.executable, "-m", "umqtt_cli"], cwd=foreign.folder, capture_output=True, check=False)
    assert foreign.imported


def test_the_installed_command_imports_no_file_of_its_folder(foreign: Foreign) -> None:
    for arguments in (
        ("--help",),
        ("certs", "ca"),
        ("new", "sensor", "soil"),
        ("passwd", "passwords", "pump-7", "--generate"),
    ):
        ended = subprocess.run(
            [UMQTT, *arguments],
            cwd=foreign.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert foreign.imported == set(), arguments
        assert ended.returncode == 0, (arguments, ended.stderr)


def test_the_broker_imports_no_file_of_its_folder(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: `python -m` without -P, in the command and in the test kit."""
    broker = subprocess.Popen([UMQTT, "broker", "-p", "0"], cwd=foreign.folder, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline()
    finally:
        broker.terminate()
        broker.wait(WAIT_LIMIT_S)
    assert foreign.imported == set() and line.startswith("listening on ")
    monkeypatch.chdir(foreign.folder)
    with paired_broker() as port:
        assert port and foreign.imported == set()


def test_the_shell_imports_no_file_of_its_folder(
    cable: Cable, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: `python -m mpremote` without -P."""
    with cable.board(files={"main.py": b"while True: pass"}):
        monkeypatch.chdir(foreign.folder)
        monkeypatch.setattr(terminals, "umqtt_command", lambda *arguments: [UMQTT, *arguments])
        with terminals.terminal("shell", "--device", "bench") as shell:
            shell.until("Use Ctrl-] or Ctrl-x")
            shell.until_raw()
            shell.type("\x1d")
            assert shell.end() == 0
    assert foreign.imported == set()


def test_every_python_that_is_started_ignores_its_folder() -> None:
    """Whoever starts `python -m` or `python -c` says -P or -I. Planted: one that does not."""
    places = ("tools", "spark_ingest", "umqtt_cli", "host_tests/umqtt_testkit")
    missing = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for place in places
        for file in (ROOT / place).rglob("*.py")
        if "sys.executable" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if (words := _words(node)) and "sys.executable" in words and {"-m", "-c"} & set(words)
        if not {"-P", "-I"} & set(words)
    ]
    assert missing == []


def _words(node: ast.AST) -> list[str]:
    """Return the items of a list or the arguments of a call that are texts or names."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    return [item.value if isinstance(item, ast.Constant) else ast.unparse(item) for item in items]  # type: ignore[misc]
