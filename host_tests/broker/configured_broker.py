"""A `python -m umqtt_broker -c FILE` process, with its log to wait for."""

import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from umqtt_testkit.waiting import WAIT_LIMIT_S


class ConfiguredBroker:
    """A broker with a configuration file that tests rewrite.

    addresses: its ready lines, without `listening on`.
    """

    def __init__(
        self,
        path: Path,
        text: str,
        addresses: int = 1,
        command: tuple[str, ...] = ("-m", "umqtt_broker"),
        groups: tuple[int, ...] | None = None,
    ):
        self.path = path
        path.write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, *command, "-c", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            extra_groups=groups,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.log: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        self.addresses = []
        for _ in range(addresses):
            line = self.process.stdout.readline().rstrip("\n")
            assert line.startswith("listening on "), (line, self.end())
            self.addresses.append(line.removeprefix("listening on "))

    def __enter__(self) -> "ConfiguredBroker":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_LIMIT_S)
        self._reader.join(WAIT_LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def port(self, number: int = 0) -> int:
        """Return the port in a ready line."""
        return int(self.addresses[number].split(" ")[0].rpartition(":")[2])

    def wait_for(self, text: str) -> str:
        """Return the next line of the log that contains this text."""
        while (line := self._lines.get(timeout=WAIT_LIMIT_S)) is not None:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError((text, self.log))

    def reload(self, text: str | None = None, until: str = "notice: reloaded") -> str:
        """Send SIGHUP, after writing a new configuration if one is given, and wait for the log line `until`."""
        if text is not None:
            self.path.write_text(text)
        self.process.send_signal(signal.SIGHUP)
        return self.wait_for(until)

    def stop(self) -> int:
        """Send SIGTERM. Returns the exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_LIMIT_S)

    def end(self) -> list[str]:
        """Kill it and return the log."""
        self.process.kill()
        while (line := self._lines.get(timeout=WAIT_LIMIT_S)) is not None:
            self.log.append(line)
        return self.log

    def _read(self, stderr: IO[str]) -> None:
        for line in stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)
