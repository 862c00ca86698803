"""Status files for people and programs: one JSON object, completely rewritten twice a second."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from umqtt_cli.escape import remark

from .durable import replace_file
from .errors import UsageError

_INTERVAL_S = 0.5


class StatusFile:
    """A status file, to which a thread writes ``snapshot()`` twice a second and on :meth:`close`.

    This needs a thread of its own, because the process may be busy with a sync or a micro-batch for seconds.

    :param path: the file; None to write none.
    :param snapshot: returns the status; called in the thread, so it must only read. The key ``updated_ms`` (Unix
        milliseconds) is added.
    :raises UsageError: the file cannot be written at the start.
    """

    def __init__(self, path: Path | None, snapshot: Callable[[], Mapping[str, object]]) -> None:
        self._path = path
        self._snapshot = snapshot
        self._closed = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None
        if path is None:
            return
        try:
            self._write()
        except OSError as error:
            raise UsageError(
                f"cannot write the status file {path}: {error.strerror}; choose another --status"
            ) from error
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and write the last status."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._write_or_say()

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            self._write_or_say()

    def _write_or_say(self) -> None:
        try:
            self._write()
            self._failing = False
        except OSError as error:
            # Telemetry continues without a status file. Report this once per outage, not at every attempt.
            if not self._failing:
                line = f"cannot write the status file {self._path}: {error.strerror}"
                remark(line)
            self._failing = True

    def _write(self) -> None:
        assert self._path is not None
        state = {**self._snapshot(), "updated_ms": time.time_ns() // 1_000_000}
        replace_file(self._path, json.dumps(state).encode() + b"\n", durable=False)
