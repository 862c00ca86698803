"""Shared by the tests of commands over the cable: virtual boards that `umqtt --device NAME` finds, and a broker."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from broker_here import broker_here
from umqtt_kit.deploy.build import build
from umqtt_kit.deploy.plan import RECORD, record_text
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.registry import registered

from umqtt_cli.__main__ import run


@dataclass(frozen=True)
class Answer:
    """The result of a command that ran in this process."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict:
        return json.loads(self.stdout)


@cache
def deployed() -> dict[str, bytes]:
    """Return the files that `umqtt deploy` leaves on a virtual board, for tests of later steps."""
    made = build("UNIX", ())
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in made.files.items()}
    return {**made.files, RECORD: record_text(made, hashes, complete=True)}


class Cable:
    """Boards plugged in under names, and the command that finds them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        monkeypatch.setenv("UMQTT_KEYS", str(folder / "keys.json"))
        # What is plugged into this computer must not affect a test.
        monkeypatch.setattr("serial.tools.list_ports.comports", list)

    @contextlib.contextmanager
    def board(self, name: str = "bench", *, files: dict[str, bytes] | None = None, **options) -> Iterator[VirtualBoard]:
        try:
            with VirtualBoard(self._folder / f"{name}.img", **options) as board, registered(name, board.port):
                if files:
                    board.install(dict(files))
                board.start()
                yield board
        except MicroPythonMissing as missing:
            pytest.skip(str(missing))

    def umqtt(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        code = run(arguments)
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)


@contextlib.contextmanager
def broker(folder: Path, *lines: str) -> Iterator[int]:
    """Run a separate paired broker; yield its port.

    lines: lines of its configuration; with them it is a process.
    """
    if not lines:
        with broker_here() as port:
            yield port
        return
    configuration = folder / "broker.conf"
    configuration.write_text("\n".join(("listener 0 127.0.0.1", *lines)) + "\n")
    with paired_broker("-c", str(configuration)) as port:
        yield port
