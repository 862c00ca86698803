"""The process that is a virtual board: its lives (from one reset to the next) and the events that end them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import interrupt
from .console import Port, open_inner
from .interpreter import DEVICE_FILES
from .switchboard import Switchboard, Timer

_READ_SIZE = 16384
_OUTPUT_KEPT = 256 * 1024
_SOFT_REBOOT = b"\r\nMPY: soft reboot\r\n"
_RAW_REPL = b"raw REPL; CTRL-B to exit"
_PROMPT = b">>> "
# A line feed of text, and a marked byte that is none: see board_boot.py.
_BARE_LF = re.compile(rb"\xff(.)|(?<!\r)\n", re.DOTALL)
_MARKED = re.compile(rb"\xff(.)", re.DOTALL)
_HALF = re.compile(rb"(?<!\xff)(\xff\xff)*\xff\Z")
_CTRL_A, _CTRL_C, _CTRL_D = b"\x01", b"\x03", b"\x04"
_TYPE_AGAIN_S = 0.002
_LOCKED_FOR_S = 0.2
# Interval and limit of the search for a moment when a running program can be interrupted without harm.
_LOOK_AGAIN_S = 0.0005
_RESTS_WITHIN_S = 0.5

# machine.reset_cause()
_POWER_ON, _HARD_RESET, _WATCHDOG_RESET, _DEEP_SLEEP_RESET, _SOFT_RESET = 1, 2, 3, 4, 5
# The stub reports a feeding only after an eighth of the timeout.
_WATCHDOG_GRACE = 9 / 8
# Checks of the watchdog per timeout. A late check counts for two intervals at most: a host that stood still has held
# up the board too, which is not its program's fault.
_WATCHDOG_LOOKS = 16
# Up to MicroPython 1.28, a watchdog that bites in a light sleep locks up an RP2040, because the reset leaves its
# oscillator stopped; on an RP2350 the watchdog does not count in a light sleep (ports/rp2/modmachine.c).
_WATCHDOG_STOPS = "rp2350"
# An interpreter that fails at once, again and again, is broken; it must not be restarted for ever.
_MOST_FAILURES = 5
_FAILURE_WITHIN_S = 2.0


class BoardError(Exception):
    """The board cannot do this; str() says why and what to do."""


@dataclass
class LifeSettings:
    """Settings that stay the same for all lives of a board."""

    command: list[str]
    image: Path
    program_size: int
    folder: Path
    unique_id: bytes
    env: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    deepsleep_s: float | None = None


class BoardProcess:
    """A board with its serial port. Only the switchboard's thread uses its state, except what `_changed` guards."""

    def __init__(self, settings: LifeSettings) -> None:
        self._settings = settings
        self._switchboard = Switchboard.shared()
        self._changed = threading.Condition()
        self._output = bytearray()
        self._searched = 0
        self._log = settings.log.open("ab", buffering=0) if settings.log else None
        self._child: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._failures = 0
        self._console = self._reports = -1
        self._console_paused = False
        self._partial_report = b""
        self._end_ordered = self._power_cut = False
        self._up = False  # typed input waits until the board has mounted its flash
        self._next_cause = _POWER_ON
        self._sleep_s: float | None = 0.0
        self._rtc_hex = self._clock_ns = ""
        self._hard_cause = _POWER_ON  # what ended the last life that was not ended by a soft reset
        self._watchdog_s = self._hungry_s = self._looked_at = 0.0
        self._light_sleep = False
        self._timers: dict[str, Timer] = {}
        self._raw_repl = self._raw_repl_wanted = self._interrupted = False
        self._tail = self._typed = b""
        self._after_cr = False  # whether the port's last byte was CR
        self._half = b""  # a mark whose byte has not come yet
        self._restless_since: float | None = None
        self.lives = 0
        self.powered = False
        self.why_off = "it was switched on"
        self._port: Port | None = Port(self._switchboard)
        self.port_path = self._port.path
        port = self._port
        self._switchboard.call(lambda: self._switchboard.watch(port.master, lambda: self._to_board(port.read())))

    # Called from any thread

    @property
    def pid(self) -> int:
        child = self._child
        return child.pid if child is not None else 0

    @property
    def output(self) -> str:
        with self._changed:
            return self._output.decode(errors="replace")

    def wait_for(self, text: str, timeout_s: float) -> str:
        wanted = text.encode()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = self._output.find(wanted, self._searched)
                if found >= 0:
                    start, self._searched = self._searched, found + len(wanted)
                    return self._output[start : self._searched].decode(errors="replace")
                left = deadline - time.monotonic()
                if not self.powered or left <= 0:
                    reason = f"within {timeout_s:g} s" if self.powered else f"before {self.why_off}"
                    tail = self._output[-2000:].decode(errors="replace")
                    raise BoardError(f"the board did not print {text!r} {reason}; its last output:\n{tail}")
                self._changed.wait(left)

    def wait_for_life(self, number: int, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.lives >= number or not self.powered, timeout_s):
                raise BoardError(f"the board has booted {self.lives} times within {timeout_s:g} s, not {number}")
            if self.lives < number:
                raise BoardError(f"the board has booted {self.lives} times, not {number}, before {self.why_off}")

    def type(self, data: bytes) -> None:
        self._switchboard.call(lambda: self._to_board(data))

    def power_on(self) -> None:
        """Begin the first life; RTC memory and everything else except the flash is lost."""

        def switch_on() -> None:
            self.powered = True
            self.lives = self._failures = 0
            self._next_cause, self._rtc_hex, self._clock_ns = _POWER_ON, "", ""
            self._raw_repl = self._interrupted = False
            with self._changed:
                # wait_for() must not find what the board printed before the power was cut.
                self._searched = len(self._output)
            self._boot()

        self._switchboard.call(switch_on)

    def power_off(self) -> None:
        self._switchboard.call(lambda: self._switch_off("it was switched off"))

    def close(self) -> None:
        def close_all() -> None:
            self._switch_off("it was closed")
            if self._port is not None:
                self._switchboard.unwatch(self._port.master)
                self._port.close()
                self._port = None
                if self._log is not None:
                    self._log.close()

        self._switchboard.call(close_all)

    # Lives; from here on everything runs in the switchboard's thread

    def _switch_off(self, why: str) -> None:
        if not self.powered:
            return
        self._end_child()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        with self._changed:
            self.powered = False
            self.why_off = why
            self._changed.notify_all()

    def _boot(self) -> None:
        """Begin a life: a new process, on a new inner terminal."""
        settings = self._settings
        run_main = not (self._raw_repl or self._interrupted)
        if self._next_cause != _SOFT_RESET:
            self._hard_cause = self._next_cause
        self._console, inner = open_inner()
        self._reports, control = os.pipe()
        os.set_blocking(self._reports, False)
        code = (
            f"import sys; sys.path[:] = [{str(DEVICE_FILES)!r}]; import board_boot; "
            f"board_boot.boot({str(DEVICE_FILES)!r}, {str(settings.image)!r}, {settings.program_size}, "
            f"{control}, {settings.env.get('UMQTT_GROUND_TRUTH')!r}, {run_main})"
        )
        environment = {
            **os.environ,
            **settings.env,
            "UMQTT_BOARD_ID": settings.unique_id.hex(),
            "UMQTT_BOARD_RESET_CAUSE": str(self._next_cause),
            "UMQTT_BOARD_HARD_CAUSE": str(self._hard_cause),
            "UMQTT_BOARD_RTC": self._rtc_hex,
            "UMQTT_BOARD_CLOCK": self._clock_ns,
            "UMQTT_BOARD_FOLDER": str(settings.folder),
        }
        try:
            self._child = subprocess.Popen(
                [*settings.command, "-i", "-c", code],
                stdin=inner,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
                pass_fds=(control,),
                cwd="/",
                env=environment,
            )
        finally:
            os.close(inner)
            os.close(control)
        self._began = time.monotonic()
        self._next_cause, self._sleep_s, self._end_ordered = _SOFT_RESET, 0.0, False
        self._power_cut = self._up = False
        self._watchdog_s = 0.0
        self._light_sleep = False
        self._raw_repl_wanted, self._interrupted = self._raw_repl, False
        self._tail = self._typed = self._partial_report = b""
        self._restless_since = None
        self._console_paused = False
        with self._changed:
            self.lives += 1
            self._changed.notify_all()
        self._switchboard.watch(self._console, self._from_board)
        self._switchboard.watch(self._reports, self._hear_reports)

    def _end_child(self) -> int:
        """Kill the process and show its last output; return its exit code (negative: signal)."""
        child = self._child
        if child is None:
            return 0
        self._child = None
        for name in ("watchdog", "type", "locked"):
            if name in self._timers:
                self._timers.pop(name).cancel()
        child.kill()
        code = child.wait()
        if not self._console_paused:
            self._switchboard.unwatch(self._console)
        self._take_reports()
        self._forget_reports()
        while data := _read(self._console):
            self._show(data)
        os.close(self._console)
        return code

    def _life_ended(self) -> None:
        """End the life of a process that has ended or has to; begin the next one, if there is one."""
        if self._power_cut:
            self._switch_off("its power was cut in a flash operation")
            return
        code = self._end_child()
        if code == -signal.SIGINT and not self._end_ordered:
            # Ctrl-C in the gap between main.py and the prompt: the user wants the prompt, not main.py again.
            self._interrupted = True
        elif code and not self._end_ordered:
            self._count_failure(code)
            if not self.powered:
                return
        if self._next_cause == _SOFT_RESET:
            self._show(_SOFT_REBOOT)
        else:
            self._raw_repl = False
        if self._sleep_s == 0.0:
            self._boot()
        elif self._sleep_s is not None:
            self._timers["wake"] = self._switchboard.later(self._sleep_s, self._boot)

    def _count_failure(self, code: int) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._show(f"\r\n[virtual board: MicroPython {how}]\r\n".encode())
        if code < 0:
            self._next_cause = _HARD_RESET
        young = time.monotonic() - self._began < _FAILURE_WITHIN_S
        self._failures = self._failures + 1 if young else 0
        if self._failures >= _MOST_FAILURES:
            self._switch_off(f"MicroPython {how} at once, {self._failures} times in a row")

    # Reports of the stub module `machine`

    def _hear_reports(self) -> None:
        if not self._take_reports():
            self._forget_reports()
        if self._end_ordered:
            self._life_ended()

    def _forget_reports(self) -> None:
        if self._reports >= 0:
            self._switchboard.unwatch(self._reports)
            os.close(self._reports)
            self._reports = -1

    def _take_reports(self) -> bool:
        """Read and carry out the reports of `machine`; return False at the end of the pipe."""
        data = _read(self._reports) if self._reports >= 0 else b""
        *lines, self._partial_report = (self._partial_report + (data or b"")).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            self._obey(name, value)
        return data != b""

    def _obey(self, name: str, value: str) -> None:
        if name == "up":
            self._up = True
            self._type_on()
        elif name == "feed":
            self._hungry_s = 0.0
        elif name == "wdt":
            self._watchdog_s, self._hungry_s = int(value) / 1000 * _WATCHDOG_GRACE, 0.0
            self._look_later()
        elif name in ("asleep", "awake"):
            self._light_sleep = name == "asleep"
        elif name == "rtc":
            self._rtc_hex = value
        elif name == "clock":
            self._clock_ns = value
        elif name == "reset":
            self._end_ordered, self._next_cause = True, _HARD_RESET
        elif name == "cut":
            self._end_ordered = self._power_cut = True
        elif name == "exit":
            self._end_ordered, self._next_cause = True, _SOFT_RESET
        elif name == "deepsleep":
            self._end_ordered, self._next_cause = True, _DEEP_SLEEP_RESET
            self._sleep_s = None if int(value) < 0 else int(value) / 1000
            if self._sleep_s and self._settings.deepsleep_s is not None:
                self._sleep_s = self._settings.deepsleep_s

    def _look_later(self) -> None:
        if "watchdog" in self._timers:
            self._timers.pop("watchdog").cancel()
        self._looked_at = time.monotonic()
        self._timers["watchdog"] = self._switchboard.later(self._watchdog_s / _WATCHDOG_LOOKS, self._watch_feeding)

    def _watch_feeding(self) -> None:
        passed_s = min(time.monotonic() - self._looked_at, 2 * self._watchdog_s / _WATCHDOG_LOOKS)
        if not (self._light_sleep and self._settings.env.get("UMQTT_BOARD_CHIP") == _WATCHDOG_STOPS):
            self._hungry_s += passed_s
        self._look_later()
        look = self._timers["watchdog"]
        # A feeding may have been reported but not read yet.
        self._hear_reports()
        if self._timers.get("watchdog") is look and self._hungry_s >= self._watchdog_s:
            self._end_ordered, self._next_cause = True, _WATCHDOG_RESET
            if self._light_sleep:
                self._sleep_s = None
                self._show(b"\r\n[virtual board: locked up until its power is cut]\r\n")
            self._life_ended()

    # The console

    def _from_board(self) -> None:
        data = _read(self._console)
        if data is None:
            return
        if not data:
            self._life_ended()
            return
        self._show(data)
        self._follow_repl(data)

    def _show(self, data: bytes) -> None:
        data = self._half + data
        self._half = b"\xff" if _HALF.search(data) else b""
        data = data[: len(data) - len(self._half)]
        with_cr = self._with_cr(data)
        data = _MARKED.sub(rb"\1", data)
        if self._log is not None:
            self._log.write(data)
        with self._changed:
            self._output += data
            surplus = len(self._output) - _OUTPUT_KEPT
            if surplus > 0:
                del self._output[:surplus]
                self._searched = max(0, self._searched - surplus)
            self._changed.notify_all()
        if self._port is None:
            return
        self._port.write(with_cr, self._port_is_free)
        if self._port.blocked and self._child is not None and not self._console_paused:
            # Back-pressure: the board's print() waits, as with flow control on a serial line.
            self._console_paused = True
            self._switchboard.unwatch(self._console)

    def _with_cr(self, data: bytes) -> bytes:
        # A board sends CR LF at the end of each line; the unix port leaves the CR to its terminal.
        head = b"\r" if self._after_cr else b""
        self._after_cr = data.endswith(b"\r")
        return _BARE_LF.sub(lambda found: found[1] or b"\r\n", head + data)[len(head) :]

    def _port_is_free(self) -> None:
        if self._console_paused and self._child is not None:
            self._console_paused = False
            self._switchboard.watch(self._console, self._from_board)

    def _follow_repl(self, data: bytes) -> None:
        """Follow which REPL the board is in: a soft reboot from the raw REPL leads back there, without main.py."""
        self._tail = (self._tail + data)[-200:]
        raw, friendly = self._tail.rfind(_RAW_REPL), self._tail.rfind(_PROMPT)
        if raw != friendly:
            self._raw_repl = raw > friendly
        if self._raw_repl_wanted and self._tail.endswith(_PROMPT):
            self._raw_repl_wanted = False
            self._to_board(_CTRL_A)

    def _to_board(self, data: bytes) -> None:
        if self._child is None:
            return  # asleep or off: nobody listens, as on a board
        self._typed += data
        if self._up:
            self._type_on()

    def _type_on(self) -> None:
        if "type" in self._timers:
            self._timers.pop("type").cancel()
        if not self._typed or self._child is None:
            return
        if _CTRL_C in self._typed and self._can_be_interrupted(self._child.pid):
            if not self._has_come_to_rest(self._child.pid):
                self._timers["type"] = self._switchboard.later(_LOOK_AGAIN_S, self._type_on)
                return
            # The signal replaces the typed character, and comes before unread input. One signal stands for all of
            # them: the unix port treats an immediate second one as a request to exit.
            self._typed = self._typed.replace(_CTRL_C, b"")
            os.kill(self._child.pid, signal.SIGINT)
        if (_CTRL_C in self._typed or _CTRL_D in self._typed) and "locked" not in self._timers:
            self._timers["locked"] = self._switchboard.later(_LOCKED_FOR_S, self._look_for_lock)
        try:
            self._typed = self._typed[os.write(self._console, self._typed) :]
        except BlockingIOError:
            pass  # the board has not read the earlier input yet
        except OSError:
            self._typed = b""  # EIO: the process has just ended; the end of the console follows
        if self._typed:
            self._timers["type"] = self._switchboard.later(_TYPE_AGAIN_S, self._type_on)

    def _can_be_interrupted(self, pid: int) -> bool:
        known = interrupt.interrupts(pid)
        return not self._tail.endswith((_PROMPT, b">")) if known is None else known

    def _has_come_to_rest(self, pid: int) -> bool:
        """Return whether the program can be interrupted now: it is at rest, or did not rest within _RESTS_WITHIN_S."""
        if self._restless_since is None:
            self._restless_since = time.monotonic()
        if not interrupt.is_at_rest(pid) and time.monotonic() - self._restless_since < _RESTS_WITHIN_S:
            return False
        self._restless_since = None
        return True

    def _waits_for_itself(self) -> bool:
        """Return whether the interpreter waits for a lock while no program runs.

        This may happen after an interrupt of a program that never rested; no board has such locks.
        """
        child = self._child
        return child is not None and not self._can_be_interrupted(child.pid) and interrupt.waits_for_lock(child.pid)

    def _look_for_lock(self, again: bool = True) -> None:
        del self._timers["locked"]
        if not self._waits_for_itself():
            return
        if again:
            self._timers["locked"] = self._switchboard.later(_LOCKED_FOR_S, lambda: self._look_for_lock(False))
            return
        self._end_ordered = True
        self._life_ended()


def _read(descriptor: int) -> bytes | None:
    """Read what is available; None if nothing is, b"" at the end."""
    try:
        return os.read(descriptor, _READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:  # EIO: nobody has the other side of the terminal open any more
        return b""
