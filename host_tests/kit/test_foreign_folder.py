"""A command runs no Python file of the folder it stands in: that may be a clone of somebody else's repository."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import terminals
from cable import Cable
from umqtt_kit import __main__ as kit
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
UMQTT = str(Path(sys.executable).with_name("umqtt"))
# Modules that our processes import, besides those of the standard library.
_OTHERS = ("aiohttp", "click", "cryptography", "deltalake", "esptool", "mpremote", "numpy", "paho", "py4j", "pyarrow")
_OURS = ("spark_ingest", "umqtt_broker", "umqtt_cli", "umqtt_kit", "umqtt_robust", "umqtt_testkit")
_SITE = ("pyspark", "rich", "serial", "sitecustomize", "usercustomize")
# What each command does in the test; the others only show their help, since they start no process without a device.
ACTIONS = {
    "certs": ("ca",),
    "new": ("sensor", "soil"),
    "passwd": ("passwords", "pump-7", "--generate"),
}


class Foreign:
    """A folder with a file for every module that a command could import. imported: those that were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "foreign"
        self.folder.mkdir()
        self._mark = folder / "imported"
        # Without any import: the modules that this could import are planted too.
        code = f"with open({str(self._mark)!r}, 'a') as mark:\n    print(__name__, file=mark)\nraise ImportError\n"
        for name in {*sys.stdlib_module_names, *_OTHERS, *_OURS, *_SITE}:
            (self.folder / f"{name}.py").write_text(code)

    @property
    def imported(self) -> set[str]:
        """The modules of the folder that somebody imported."""
        return set(self._mark.read_text().split()) if self._mark.exists() else set()

    def run(self, *arguments: str, within_s: float = WAIT_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run the installed command in this folder."""
        command = [UMQTT, *arguments]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
        )


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


def test_the_planted_files_would_be_imported(foreign: Foreign) -> None:
    """The check itself: Python in its usual mode imports them."""
    subprocess.run([sys.executable, "-m", "umqtt_kit"], cwd=foreign.folder, capture_output=True, check=False)
    assert foreign.imported


def test_no_command_imports_a_file_of_its_folder(foreign: Foreign) -> None:
    for name in kit._COMMANDS:
        ended = foreign.run(name, *ACTIONS.get(name, ("--help",)))
        assert foreign.imported == set(), name
        assert ended.returncode == 0, (name, ended.stderr)


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


@pytest.mark.tier(2)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt install openjdk-17-jre-headless")
def test_the_whole_chain_imports_no_file_of_its_folder(foreign: Foreign) -> None:
    """Broker, proxy, collector, devices, pipeline and Spark's own Python processes.

    Planted: Spark's processes without PYTHONSAFEPATH.
    """
    ended = foreign.run(
        *("demo", "--seconds", "1", "--boards", "0", "--devices", "2", "--out", "out", "--json"), within_s=300
    )
    assert foreign.imported == set()
    assert ended.returncode == 0, ended.stderr


def test_every_python_that_is_started_ignores_its_folder() -> None:
    """Whoever starts `python -m` or `python -c` says -P or -I. Planted: one that does not."""
    places = ("tools", "spark_ingest", "umqtt_cli", "host_tests/umqtt_testkit")
    missing = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for place in places
        for file in (ROOT / place).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (words := _words(node)) and "sys.executable" in words and {"-m", "-c"} & set(words)
        if not {"-P", "-I"} & set(words)
    ]
    assert missing == []


def _words(node: ast.AST) -> list[str]:
    """Return the items of a list or the arguments of a call that are texts or names."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    return [item.value if isinstance(item, ast.Constant) else ast.unparse(item) for item in items]  # type: ignore[misc]


