"""One board on its serial port, in the raw REPL. The only module that uses mpremote.

mpremote is used by its Python API (mpremote.transport_serial), not by its command:

- the API raises what failed, with the board's traceback apart from its output; the command prints both mixed, ends
  with 1 for a missing port, a busy port and a program's mistake alike, and does not say why a port could not be
  opened;
- the command has no time limits: on a board that prints for ever it never ends;
- one connection serves hundreds of files, while the command starts a Python and resets the board for each.

The API may change; then only this module has to follow, and host_tests/kit/test_device_board.py shows it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import enum
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, cast

import click
from mpremote.transport import TransportError
from mpremote.transport_serial import SerialTransport

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.device import scripts
from umqtt_kit.device.line import Late, Line, PortBusy, gone, open_serial
from umqtt_kit.device.ports import Port
from umqtt_kit.device.running import Running, State
from umqtt_kit.device.trouble import DeviceError, no_prompt

BAUDRATE = 115200
# Seconds of each attempt: a board that boots, or finishes a long operation, may miss the first Ctrl-C.
_ATTEMPTS_WITHIN_S = (2.0, 4.0, 6.0)
_ANSWERS_WITHIN_S = 30.0
_RESTARTS_WITHIN_S = 10.0
_REOPENS_WITHIN_S = 15.0
_RETRY_S = 0.1
_BUSY_FOR_S = 1.0
_HELD_FOR_S = 5.0
# The longest time that an rp2's watchdog accepts.
_RP2_WATCHDOG_MS = 8388
_FEED_EVERY_S = 1.0
# Bytes of a file per call: base64 makes 1 KB of source of them, which a board compiles in a few KB of heap.
_CHUNK = 768
_PATHS_A_CALL = 12
# put() writes here until the file is whole. What an interruption leaves here, the next put() overwrites.
TEMPORARY = "/umqtt-put.tmp"


@dataclass(frozen=True)
class Info:
    """What a board is and runs. Sizes in bytes.

    version: MicroPython's, for instance "1.28.0"; mpy_version: of the .mpy files it loads; device_id: from
    settings.json, else the unique id in hex; app_version: of the application that boot.py has chosen, None without one;
    has_main: whether there is a /main.py;
    network: what the image has, "wifi", "wired" (sockets, but no Wi-Fi) or "none".
    """

    version: str
    mpy_version: int
    platform: str
    machine: str
    build: str
    unique_id: str | None
    flash_free: int
    flash_size: int
    heap_free: int
    heap_size: int
    app_version: str | None
    device_id: str | None
    provisioned: bool
    has_main: bool
    network: str
    path: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "path": list(self.path)}


class Manner(enum.Enum):
    """How to treat a program that runs on the board.

    INTERRUPT: Ctrl-C, at once. STOP: the firmware says goodbye to its broker first, so that its restart raises no
    alarm; any other program is interrupted. BESIDE: the firmware goes on, and our programs run between its steps; at
    the prompt nothing is reset either; a program that cannot be asked raises NotAsked.
    """

    INTERRUPT = enum.auto()
    STOP = enum.auto()
    BESIDE = enum.auto()


class NotAsked(KitError):
    """A program runs on the board that cannot be asked, and it was left alone."""

    def __init__(self, name: str) -> None:
        self.problem = f"{name}: a program runs there that cannot answer questions"
        super().__init__(f"{self.problem} — --interrupt interrupts it, and restarts the board at the end", EXIT_DEVICE)


def look(port: Port | str, *, interrupt: bool = False) -> Board:
    """Return a Board for reading only: a program that runs on the board goes on.

    interrupt: interrupt a program that cannot be asked; it starts again at the end. Without it, the user is asked on
    a terminal whether to interrupt; raises NotAsked if the answer is no, or there is no terminal.
    """
    try:
        return Board(port, manner=Manner.BESIDE)
    except NotAsked as refused:
        question = f"{refused.problem}. Interrupt it, and restart the board at the end?"
        if not interrupt and not (sys.stdin.isatty() and click.confirm(question, err=True)):
            raise
        return Board(port)


class Board:
    """A board to run programs on: in the raw REPL after a soft reset, or beside the firmware that runs there.

    After the soft reset boot.py has run, and main.py has not. port: from choose(), or a path. soft_reset=False keeps
    what the interrupted program had in memory. restart: leaving the context resets the board, so that its program
    runs again whatever happened in between; a board that was not interrupted is not reset. Every method raises
    KitError: exit code 3 if the board is not there (any more), 5 if it does not do what it should. NotAsked is one of
    these.
    """

    def __init__(
        self,
        port: Port | str,
        *,
        manner: Manner = Manner.INTERRUPT,
        restart: bool = True,
        soft_reset: bool = True,
        baudrate: int = BAUDRATE,
    ) -> None:
        self.path = port if isinstance(port, str) else port.path
        self.name = port if isinstance(port, str) else port.name
        self._restart = restart
        self._baudrate = baudrate
        self._loaded: set[str] = set()
        self._interrupted = False
        self._running: Running | None = None
        self._transport, self._line = self._connect()
        try:
            self._meet(manner, soft_reset)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._restart and self._interrupted:
                # After a failure the user must hear of that failure, not that the board cannot be reset either.
                with contextlib.suppress(KitError) if kind else contextlib.nullcontext():
                    self.reset()
            elif self._interrupted and self._transport.in_raw_repl:
                with contextlib.suppress(KitError, Late):
                    self._transport.exit_raw_repl()
        finally:
            self.close()

    @property
    def beside(self) -> bool:
        """Whether the firmware runs and is not interrupted."""
        return self._running is not None

    # Control

    def _meet(self, manner: Manner, soft_reset: bool) -> None:
        if manner is Manner.INTERRUPT:
            self.interrupt(soft_reset=soft_reset)
            return
        running = Running(self._line)
        state = running.state()
        if manner is Manner.STOP:
            if state is State.APPLICATION:
                with contextlib.suppress(Late):
                    running.stop()
            self.interrupt(soft_reset=soft_reset)
        elif state is State.APPLICATION:
            self._running = running
        elif state is State.SILENT:
            raise NotAsked(self.name)
        elif state is State.CRASHED:
            self.interrupt(soft_reset=False)  # at the end the firmware starts again, as it would have by itself
        else:
            # A user at work at the prompt finds everything as it was. No watchdog runs, and none is started.
            self._restart = False
            self._enter(soft_reset=False)
            self.exec(scripts.NO_WATCHDOG)

    def interrupt(self, *, soft_reset: bool = True) -> None:
        """Stop whatever runs and wait for the prompt of the raw REPL. Raises KitError."""
        self._enter(soft_reset)
        self._keep_watchdog_quiet()

    def _enter(self, soft_reset: bool) -> None:
        self._loaded.clear()
        self._interrupted = True
        late = Late(talking=False)
        for within_s in _ATTEMPTS_WITHIN_S:
            self._line.allow(within_s)
            try:
                self._transport.enter_raw_repl(soft_reset=soft_reset)
                break
            except Late as error:
                late = error
            except TransportError:
                late = Late(talking=True)
        else:
            raise KitError(f"{self.name}: {no_prompt(late.talking)}", EXIT_DEVICE)

    def soft_reset(self) -> None:
        """Clear the memory and run boot.py, but not main.py."""
        self.interrupt(soft_reset=True)

    def reset(self) -> None:
        """Reset the hardware, so that boot.py and main.py run. To talk to the board again, reopen() it."""
        self.leave("import machine\nmachine.reset()")

    def leave(self, source: str) -> None:
        """Run a program that takes the board away: a reset, a sleep. To talk to the board again, reopen() it."""
        with contextlib.suppress(Late, TransportError):
            self._line.allow(_RESTARTS_WITHIN_S)
            if not self._transport.in_raw_repl:
                self._transport.enter_raw_repl(soft_reset=False)
            self._transport.exec_raw_no_follow(source)
            self._transport.in_raw_repl = self._interrupted = False
            return
        raise KitError(f"{self.name}: the board cannot be reset from here — press its reset button", EXIT_DEVICE)

    def read_output(self) -> bytes:
        """Return what the board has printed since reset(). Raises KitError if the port went away in the reset."""
        self._line.allow(_ANSWERS_WITHIN_S)
        return self._line.read(self._line.inWaiting())

    def follow(self, heard: Callable[[bytes], object]) -> None:
        """After reset(): run programs beside the firmware as soon as it answers; until then exec() raises KitError.

        heard: called with what the board prints meanwhile. Call it again if exec() fails: the port of a board's own
        USB goes away in a reset.
        """
        try:
            self._line.allow(_RETRY_S)
            self._line.inWaiting()
        except Late:
            pass
        except KitError:
            with contextlib.suppress(KitError):
                self.close()
                self._transport, self._line = self._connect()
        self._running = Running(self._line, heard)

    def reopen(self, timeout_s: float = _REOPENS_WITHIN_S, *, soft_reset: bool = True) -> None:
        """After reset(): wait until the port is back, and interrupt main.py.

        The port of a board's own USB goes away in a reset.
        """
        self.close()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._transport, self._line = self._connect()
                break
            except KitError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)
        self.interrupt(soft_reset=soft_reset)

    @contextlib.contextmanager
    def fed(self) -> Iterator[None]:
        """Within the context, feed the board's watchdog from a thread. The caller must not use the board meanwhile."""
        ended = threading.Event()

        def feed() -> None:
            # The next user of the board gets an error if something is wrong with it.
            with contextlib.suppress(KitError):
                while not ended.wait(_FEED_EVERY_S):
                    self.exec("_u_feed()")

        feeder = threading.Thread(target=feed, name=f"feeds {self.name}", daemon=True)
        feeder.start()
        try:
            yield
        finally:
            ended.set()
            feeder.join()

    def close(self) -> None:
        """Close the port, whatever state the board is in. May be called again."""
        with contextlib.suppress(OSError):
            self._transport.close()
        with contextlib.suppress(OSError):
            self._line.close()

    # Programs

    def exec(
        self, source: str, timeout_s: float = _ANSWERS_WITHIN_S, on_output: Callable[[bytes], object] | None = None
    ) -> str:
        """Run a program on the board. Return what it printed, or pass it to on_output as it comes.

        Raises DeviceError if the program raised, KitError (exit code 5) if it did not end within timeout_s.
        """
        printed = bytearray()
        show = on_output or printed.extend
        with self._within(timeout_s):
            if self._running is not None:
                error = self._running.exec(source, show)
            else:
                # Given a data consumer, mpremote reads in linear time, but passes the end mark to the consumer too.
                _, error = self._transport.exec_raw(
                    source, data_consumer=lambda data: show(data) if data != b"\x04" else None
                )
        if error:
            raise DeviceError(self.name, error.decode(errors="replace"))
        return printed.decode(errors="replace").replace("\r\n", "\n")

    def eval(self, expression: str) -> object:
        """Return the value of an expression on the board, if it is a literal (numbers, text, bytes, lists …)."""
        return self.value(f"print(repr({expression}))")

    def value(self, source: str, timeout_s: float = _ANSWERS_WITHIN_S) -> object:
        """Return the literal that a program on the board prints.

        Raises what exec() raises, and KitError if the program prints anything else.
        """
        text = self.exec(source, timeout_s)
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise self._nonsense(text) from None

    # Files; paths are absolute

    def get(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        lines = self._call("GET", f"_u_get({path!r})", 60.0)
        return None if lines == "-\n" else base64.b64decode(lines)

    def put(self, path: str, data: bytes, on_sent: Callable[[int], object] | None = None) -> None:
        """Write a file, and make its folders. At any moment the old file or the new one is there, never a part.

        On FAT there is a moment at which neither is there.
        on_sent: called with the number of bytes after each chunk.
        """
        self._call("PUT", "_u_open()")
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            self._call("PUT", f"_u_write({base64.b64encode(chunk)!r})")
            if on_sent is not None:
                on_sent(len(chunk))
        self._call("PUT", f"_u_close({path!r})")

    def hashes(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return the SHA-256 in hex of each file, computed on the board; None for a file that is not there."""
        paths = list(paths)
        found: list[str | None] = []
        for start in range(0, len(paths), _PATHS_A_CALL):
            lines = self._call("HASH", f"_u_hash({paths[start : start + _PATHS_A_CALL]!r})", 30.0).split()
            found += [None if line == "-" else line for line in lines]
        return dict(zip(paths, found, strict=True))

    def list_files(self, folder: str = "/") -> dict[str, int]:
        """Return the size of every file in a folder and below, by path; folders have the size -1.

        The result is empty if the folder is not there.
        """
        try:
            lines = self._call("TREE", f"_u_list({folder!r})", 30.0).splitlines()
        except DeviceError as error:
            if "ENOENT" in error.error or error.error == "OSError: 2":
                return {}
            raise
        return dict(sorted(ast.literal_eval(line) for line in lines))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; a file that is not there is no error."""
        paths = list(paths)
        for start in range(0, len(paths), _PATHS_A_CALL):
            self._call("REMOVE", f"_u_remove({paths[start : start + _PATHS_A_CALL]!r})")

    def remove_empty(self, folders: Iterable[str]) -> None:
        """Remove folders, in this order; those that are not empty stay."""
        self._call("REMOVE", f"_u_rmdir({list(folders)!r})")

    def remove_tree(self, folder: str) -> None:
        """Remove a folder and everything in it."""
        entries = self.list_files(folder)
        self.remove(path for path, size in entries.items() if size >= 0)
        folders = [path for path, size in entries.items() if size < 0]
        self.remove_empty([*sorted(folders, reverse=True), folder])

    def mkdir(self, path: str) -> None:
        """Make a folder and those above it; a folder that is there already is no error."""
        self._call("MKDIR", f"_u_mkdir({path!r})")

    def info(self) -> Info:
        """Return what the board is and runs."""
        found = self.value(scripts.INFO)
        if not isinstance(found, dict):
            raise self._nonsense(repr(found))
        mpy, unique_id = found.pop("mpy"), found.pop("unique_id")
        serial = unique_id.hex() if unique_id is not None else None
        return Info(
            **found
            | {
                "version": ".".join(str(part) for part in found["version"] if part != ""),
                "path": tuple(found["path"]),
                "device_id": found["device_id"] or serial,
            },
            mpy_version=mpy & 0xFF,
            unique_id=serial,
        )

    # Inside

    def _connect(self) -> tuple[SerialTransport, Line]:
        # The port may be busy for a moment, because of a command that has just ended or one of its children. On a
        # busy machine a child may take long to start its own program, and until then it has no name.
        began = time.monotonic()
        while True:
            try:
                transport = SerialTransport(self.path, baudrate=self._baudrate)
                break
            except (TransportError, OSError):
                # mpremote says only that it failed. Opening the port again tells why, or shows that the cause is
                # gone.
                try:
                    open_serial(self.path, baudrate=self._baudrate).close()
                except PortBusy as busy:
                    if time.monotonic() - began > (_BUSY_FOR_S if busy.known else _HELD_FOR_S):
                        raise
                else:
                    if time.monotonic() - began > _BUSY_FOR_S:
                        raise gone(self.name) from None
            time.sleep(_RETRY_S)
        line = Line(cast(Any, transport.serial), self.name)
        transport.serial = cast(Any, line)
        # With this mpremote waits in read() until a byte comes, instead of asking a hundred times a second.
        # Line.read() returns what it was asked for or raises, so mpremote's own time limits, which count differently,
        # never apply.
        transport.is_pty = True
        return transport, line

    @contextlib.contextmanager
    def _within(self, timeout_s: float) -> Iterator[None]:
        self._line.allow(timeout_s)
        try:
            yield
        except Late as late:
            self._transport.in_raw_repl = False
            what = "goes on printing and does not end" if late.talking else "does not answer"
            raise KitError(f"{self.name}: the board {what} within {timeout_s:g} s — press its reset button, "
                           "and repeat the command", EXIT_DEVICE) from None  # fmt: skip
        except TransportError as error:
            self._transport.in_raw_repl = False
            raise self._nonsense(str(error)) from error
        except KitError:
            self._transport.in_raw_repl = False
            raise

    def _call(self, script: str, call: str, timeout_s: float = _ANSWERS_WITHIN_S) -> str:
        # In the raw REPL the functions of a script are sent once, when first needed; beside the firmware, at each call.
        if self._running is not None:
            return self.exec(getattr(scripts, script).replace("{temporary}", TEMPORARY) + call, timeout_s)
        if script not in self._loaded:
            self.exec(getattr(scripts, script).replace("{temporary}", TEMPORARY))
            self._loaded.add(script)
        return self.exec(call, timeout_s)

    def _keep_watchdog_quiet(self) -> None:
        value = self.value(scripts.WATCHDOG_SETTING)
        if value == -1:
            value = _default_watchdog_ms()
        if isinstance(value, int) and value > 0:
            self.exec(scripts.WATCHDOG.format(timeout_ms=value, shortest_ms=_RP2_WATCHDOG_MS))
        else:
            self.exec(scripts.NO_WATCHDOG)

    def _nonsense(self, text: str) -> KitError:
        short = " ".join(text.split())[-100:]
        # A program that a restart has ended prints nothing more.
        what = f"unexpected answer {short!r}" if short else "no answer: did the board restart meanwhile?"
        return KitError(f"{self.name}: {what} — repeat the command; if it stays, reset the board", EXIT_DEVICE)


def _default_watchdog_ms() -> int:
    # If the board's settings name no watchdog, the application has used its default.
    from umqtt_kit.firmware_settings import settings_module

    return int(settings_module().DEFAULTS.get("watchdog_ms", 0))
