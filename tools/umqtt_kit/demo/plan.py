"""What a demo is asked to do, and the folder that it leaves behind."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.requirements import require_writable_folder
from umqtt_kit.prove.brokers import BROKERS, Broker
from umqtt_kit.prove.faults import Fault

_MARK = ".umqtt-demo"


@dataclass(frozen=True)
class Plan:
    """What a demo, or a proof, is asked to do.

    seconds: how long readings are taken; faults: what breaks meanwhile; broker: which one. proves: boards get commands
    all the time and must boot once more at the end, and a part that ends by itself is started again and noted; in a
    demo its end is the end of the run.
    """

    seconds: float
    boards: int
    devices: int
    faults: tuple[Fault, ...]
    proves: bool = False
    broker: Broker = BROKERS["paired"]
    board_interval_ms: int = 200
    device_interval_ms: int = 250


class RunFolder:
    """The folder --out: logs, ground truth, spool and tables of one run. What an earlier run left is removed.

    It is locked while a demo uses it. Raises KitError if it cannot be written, is in use, or holds what no demo made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        require_writable_folder(self.path, "--out")
        self._require_ours()
        self._lock = os.open(self.path / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise KitError(
                f"another demo is running in --out {path} — give this one another folder", EXIT_USAGE
            ) from error
        self.boards = self._empty("boards")
        self.checkpoint = self._empty("checkpoint")
        self.commands = self._empty("commands")
        self.logs = self._empty("logs")
        self.machines = self._empty("machines")
        self.scratch = self._empty("scratch")
        self.spool = self._empty("spool")
        self.status = self._empty("status")
        self.store = self._empty("store")
        self.tables = self._empty("tables")
        self.ground_truth = self._empty("ground-truth")
        self.history = self.path / "history.jsonl"
        self.result = self.path / "result.json"
        self.report = self.path / "report.html"
        for file in (self.history, self.result, self.report):
            file.unlink(missing_ok=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _require_ours(self) -> None:
        """Raise KitError for files that no demo made, because the demo deletes what is in the folder."""
        if not (self.path / _MARK).exists() and any(self.path.iterdir()):
            raise KitError(
                f"--out {self.path} holds files that no demo made — give an empty or a new folder", EXIT_USAGE
            )

    def _empty(self, name: str) -> Path:
        """Return one of the run's own folders, without what an earlier run left in it."""
        folder = self.path / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        return folder
