"""Child processes that never outlive their parent: started, waited for until ready, stopped in order.

Every child leads a session of its own, so that Ctrl-C in the terminal reaches only the parent, which stops the
children in order. On Linux the kernel kills a child when its parent dies, for whatever reason. Processes that a child
has started itself (Spark's Java) are in its process group and are killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from umqtt_cli.errors import EXIT_LOST, EXIT_MISSING, EXIT_USAGE, Interrupted, KitError

_PR_SET_PDEATHSIG = 1
# How long a child may take to end after SIGTERM, before it is killed.
_STOP_WITHIN_S = 10.0
# The same after Ctrl-C or a failure: nobody waits for results then, only for the end.
_GIVE_UP_WITHIN_S = 2.0
_ANSWERS_WITHIN_S = 30.0
_POLL_S = 0.02
# Signals that end a command by an exception: see interruptible().
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """One child process. Its output goes to a log file; its lines of stdout can be waited for.

    asked: it takes commands on stdin (see ask()); otherwise its stdin is empty.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        asked: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        self._reader = threading.Thread(target=self._copy_output, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_for_line(self, prefix: str, timeout_s: float) -> str:
        """Return the first line of stdout that begins with prefix. Raises KitError if it does not come in time."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended or self._line(prefix) is not None, timeout_s)
            line = self._line(prefix)
        if line is not None:
            return line
        if found:
            raise self.death()
        raise KitError(f"{self.name} did not say {prefix!r} within {timeout_s:g} s — see {self.log}", EXIT_LOST)

    def has_line(self, prefix: str) -> bool:
        """Return whether a line of stdout has begun with prefix so far."""
        with self._changed:
            return self._line(prefix) is not None

    def ask(self, line: str, timeout_s: float = _ANSWERS_WITHIN_S) -> str:
        """Write a command to its stdin and return the line that answers it. Raises KitError if none comes in time."""
        assert self._process.stdin is not None, "started without asked=True"
        with self._changed:
            before = len(self._lines)
            try:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self.death() from None
            answered = self._changed.wait_for(lambda: self._ended or len(self._lines) > before, timeout_s)
            if len(self._lines) > before:
                return self._lines[before]
        if answered:
            raise self.death()
        raise KitError(f"{self.name} did not answer {line!r} within {timeout_s:g} s — see {self.log}", EXIT_LOST)

    def death(self) -> KitError:
        """Return the error for a child that ended without being told to; the last line of its log says why."""
        code = self._process.wait()
        words = self._last_words()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        exit_code = code if code in (EXIT_USAGE, EXIT_MISSING) else EXIT_LOST
        return KitError(f"{self.name} {how}{': ' + words if words else ''} — see {self.log}", exit_code)

    def terminate(self) -> None:
        """Tell it to end in order. This may take a while: see wait()."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit code, or None if it still runs after timeout_s."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill it and everything in its process group, now."""
        # The group has the leader's pid, which the kernel does not reuse while a member of the group lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_STOP_WITHIN_S)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout, self.log.open("ab") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _line(self, prefix: str) -> str | None:
        return next((line for line in self._lines if line.startswith(prefix)), None)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line), "")[:300]
        return ""


class Children:
    """All child processes of a command. Leaving the context stops those that still run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []
        self._may_end: set[Child] = set()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all(_STOP_WITHIN_S if kind is None else _GIVE_UP_WITHIN_S)

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, asked: bool = False
    ) -> Child:
        """Start a program as a child. Raises KitError if it cannot be started.

        For the main thread only: the kernel ties the death signal to the thread that started the child.
        """
        try:
            # A signal between starting the child and listing it would leave a child that nobody stops.
            with _interrupted_afterwards():
                child = Child(name, command, self._logs / f"{name}.log", env, asked)
                self._children.append(child)
        except OSError as error:
            raise KitError(f"{name} could not be started: {error}", EXIT_MISSING) from error
        return child

    def check(self) -> None:
        """Raise KitError if a child has ended without being told to."""
        for child in self._children:
            if child.returncode is not None and child not in self._may_end:
                raise child.death()

    def end(self, child: Child) -> None:
        """Tell one child to end in order, and return at once; check() ignores this child from now on."""
        self._may_end.add(child)
        child.terminate()

    def stop(self, child: Child, timeout_s: float = _STOP_WITHIN_S) -> int | None:
        """End one child in order. Return its exit code, or None if it had to be killed."""
        child.terminate()
        code = child.wait(timeout_s)
        child.kill()
        self._children.remove(child)
        return code

    def kill(self, child: Child) -> None:
        """Kill one child with its process group, now; check() ignores it from now on."""
        child.kill()
        self._children.remove(child)

    def stop_all(self, timeout_s: float = _STOP_WITHIN_S) -> None:
        """Tell all children to end, and kill those that take longer. A second Ctrl-C kills at once."""
        try:
            for child in reversed(self._children):
                child.terminate()
            deadline = time.monotonic() + timeout_s
            while any(child.returncode is None for child in self._children) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            while self._children:
                self._children[-1].kill()
                self._children.pop()


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a Python module with this interpreter, its output unbuffered.

    -P: without it, the module would import files of the current folder instead of the standard library's.
    """
    return [sys.executable, "-P", "-u", "-m", module, *arguments]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within this context, raise Interrupted on SIGTERM and SIGHUP, so that cleanup happens as on Ctrl-C."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _INTERRUPTING if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    # Delays the signals until the block has ended. A signal mask would not do: another thread would take the signal.
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in _INTERRUPTING:
            before[number] = signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a preexec_fn that asks the kernel for SIGKILL at the parent's death (Linux only; None elsewhere)."""
    if not sys.platform.startswith("linux"):
        return None
    # Looked up before the fork: between fork and exec nothing may take a lock that another thread holds.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the kernel was asked.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return ask
