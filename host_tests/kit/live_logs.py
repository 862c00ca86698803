"""A running `umqtt logs` process, with what it has printed so far."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator

from kit_command import umqtt_command
from umqtt_testkit.waiting import WAIT_LIMIT_S


class Following:
    """A process of `umqtt logs`, or of another command that keeps running, and its lines as they come."""

    def __init__(self, *arguments: str, command: str = "logs") -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(umqtt_command(command, *arguments), stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._streams = {self.process.stdout.fileno(): bytearray(), self.process.stderr.fileno(): bytearray()}
        self._out, self._err = self._streams.values()

    @property
    def out(self) -> str:
        return self._out.decode()

    @property
    def err(self) -> str:
        return self._err.decode()

    def until(self, wanted: str, *, times: int = 1) -> None:
        """Wait until this text (a regular expression) was printed `times` times, on either stream."""
        while len(re.findall(wanted, self.out + self.err)) < times:
            ready = select.select(list(self._streams), [], [], WAIT_LIMIT_S)[0]
            assert ready, f"{wanted!r} did not come {times} times in:\n{self.out[-2000:]}\n{self.err}"
            for descriptor in ready:
                data = os.read(descriptor, 65536)
                assert data, f"it has ended without {wanted!r}:\n{self.out[-2000:]}\n{self.err}"
                self._streams[descriptor] += data

    def interrupt(self) -> int:
        """Send Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_LIMIT_S)


@contextlib.contextmanager
def following(*arguments: str, command: str = "logs") -> Iterator[Following]:
    logs = Following(*arguments, command=command)
    try:
        yield logs
    finally:
        logs.process.kill()
        logs.process.communicate()
