"""Runs programs beside the firmware, which goes on running; firmware/app/attend.py is the other end."""

from __future__ import annotations

import base64
import contextlib
import enum
from collections.abc import Callable

from umqtt_kit.device.line import Late, Line

# Ctrl-T means nothing to MicroPython; Ctrl-B makes the prompt show itself.
_ASK = b"\x14"
_PROBE = b"\x02" + _ASK
_READY = _ASK + b"ready\n"
_PROMPT = b">>> "
_PAUSE = b"; Ctrl-C for the prompt"
_ACK, _END = b"\x06", b"\x04"
# The firmware's loop looks once a second, and may be in a TLS handshake. A board that is just restarting never sees
# what is typed meanwhile, so it is asked several times.
_ASKED_AGAIN_AFTER_S = 2.0
_ASKED = 5
# A board that has begun to answer finishes that: it waits 5 s for the next line of a program.
_ENDS_WITHIN_S = 8.0
# For an application that says goodbye to its broker: restart.py gives it 4 s.
_STOPS_WITHIN_S = 8.0
_STOP = """
def _u_end(): raise KeyboardInterrupt
board.restart.reset = _u_end
board.restart()
"""
# Bytes of a program per line; base64 makes 192 characters of them.
_LINE = 144
_KEPT = 256


class State(enum.Enum):
    """What a board does.

    APPLICATION: the firmware runs and can be asked; PROMPT: nothing runs; CRASHED: the firmware has ended, and the
    board waits to restart; SILENT: none of these within 10 s, so another program runs, or the board hangs.
    """

    APPLICATION = enum.auto()
    PROMPT = enum.auto()
    CRASHED = enum.auto()
    SILENT = enum.auto()


class Running:
    """The firmware at the other end of a serial line. Nothing else may use the line meanwhile.

    heard: called with the bytes that the application prints before it answers.
    """

    def __init__(self, line: Line, heard: Callable[[bytes], object] = lambda data: None) -> None:
        self._line = line
        self._heard = heard

    def state(self) -> State:
        """Return what the board does. Nothing is interrupted."""
        for _ in range(_ASKED):
            self._line.allow(_ASKED_AGAIN_AFTER_S)
            self._line.write(_PROBE)
            with contextlib.suppress(Late):
                seen = self._until(_READY, _PROMPT, _PAUSE)
                if seen == _READY:
                    # This empty program must run to its end: if it were given up, its end mark would later be taken for
                    # that of the next program.
                    self._line.allow(_ENDS_WITHIN_S)
                    self._run("", lambda data: None)
                    return State.APPLICATION
                return State.PROMPT if seen == _PROMPT else State.CRASHED
        return State.SILENT

    def exec(self, source: str, show: Callable[[bytes], object]) -> bytes:
        """Run a program beside the application and pass its output to show(). Return its traceback, b"" without one.

        Raises Late after the time that the line allows.
        """
        self._line.write(_ASK)
        self._until(_READY)
        return self._run(source, show)

    def stop(self) -> None:
        """Make the application say goodbye to its broker and end at the prompt. Raises Late."""
        self._line.allow(_STOPS_WITHIN_S)
        self.exec(_STOP, lambda data: None)
        self._until(_PROMPT)

    def _run(self, source: str, show: Callable[[bytes], object]) -> bytes:
        data = source.encode()
        lines = [base64.b64encode(data[start : start + _LINE]) for start in range(0, len(data), _LINE)]
        for line in [*lines, b""]:
            self._line.write(line + b"\n")
            if self._until(_ACK, _END) == _END:
                break  # the board refuses it, and says why
        else:
            self._read_to_end(show)
        failed = bytearray()
        self._read_to_end(failed.extend)
        return bytes(failed)

    def _read_to_end(self, show: Callable[[bytes], object]) -> None:
        while (data := self._line.read(1)) != _END:
            show(data)

    def _until(self, *marks: bytes) -> bytes:
        # Returns the first of these marks that comes.
        seen = b""
        while True:
            byte = self._line.read(1)
            self._heard(byte)
            seen = (seen + byte).replace(b"\r\n", b"\n")[-_KEPT:]
            for mark in marks:
                if seen.endswith(mark):
                    return mark
