"""A command on a terminal, for tests of what it shows and asks there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator

from kit_command import umqtt_command
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            umqtt_command(*arguments), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**env, "TERM": "xterm", **environment},
            # Its controlling terminal, so that a typed Ctrl-C is a signal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    @property
    def text(self) -> str:
        """What was shown, without the codes that move, erase and colour."""
        return _CODES.sub("", self.shown)

    def until(self, wanted: str) -> None:
        ends = time.monotonic() + WAIT_LIMIT_S
        while wanted not in self.text:
            # A table that is drawn again and again never ends.
            assert self._read() and time.monotonic() < ends, f"{wanted!r} is not in:\n{self.shown}"

    def until_raw(self) -> None:
        """Wait until Ctrl-C is a byte to the command and not a signal: mpremote says how to leave just before."""
        eventually(lambda: not termios.tcgetattr(self._master)[3] & termios.ISIG, lambda: self.shown)

    def end(self) -> int:
        """Read everything up to its end; return the exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT_LIMIT_S)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> int:
        """Send Ctrl-C until it ends: CPython may miss one that comes just before it reads a line."""

        def ended() -> bool:
            self.type("\x03")
            self._read(0.1)
            return self.process.poll() is not None

        eventually(ended, lambda: self.shown)
        return self.process.wait()

    def _read(self, within_s: float = WAIT_LIMIT_S) -> bool:
        if not select.select([self._master], [], [], within_s)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False  # nobody has the terminal open any more
        self.shown += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_LIMIT_S)
        os.close(self._master)


@contextlib.contextmanager
def terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments, **environment)
    try:
        yield opened
    finally:
        opened.close()
