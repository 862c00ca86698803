"""What only a real board can show: flash, power cut, watchdog, sleep, Wi-Fi, the memory that TLS takes, and an update.

Each is tried on the board itself, with nothing of the application running; only for the update it runs. What
docs/hardware.md assumes about the chip is compared with what the chip does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.device import Board, Info, Port, read_configuration
from umqtt_kit.device.board import Manner
from umqtt_kit.device.guess import missing_network
from umqtt_kit.doctor import scripts
from umqtt_kit.doctor.checks import FAIL, OK, WARN, Finding, try_wifi
from umqtt_kit.doctor.round_trip import try_update
from umqtt_kit.keys import Keys
from umqtt_kit.mqtt import Access
from umqtt_robust.servers import parse_url

_FLASH_KB = 64
_REPLACEMENTS = 50
# Replacing a file that takes longer than this delays the firmware's loop.
_SLOW_MS = 500
_WRITES_FOR_S = 1.0
_CUT_WITHIN_S = 60.0
_BACK_WITHIN_S = 120.0
_WATCHDOG_MS = 3000
_SLEEP_MS = 3000
_LISTENS_EVERY_S, _FALLS_ASLEEP_S = 0.05, 0.3
# Clocks without a crystal are some percent off; a reset and a start come on top.
_EARLY, _LATE_S = 0.9, 5.0
_CONNECTS_WITHIN_S = 5.0
_HANDSHAKE_WITHIN_S = 30.0
# Besides the time for connection and handshake: look up a name, close the socket.
_TLS_BESIDES_S = 30.0
# Values of machine.reset_cause(): the first on esp32 and rp2, the second on esp32 only.
_BY_WATCHDOG, _BY_DEEP_SLEEP = 3, 4


class _Numbers:
    """The numbers that a program prints, one per line. Raises KitError at anything else: the board has restarted."""

    def __init__(self) -> None:
        self._said = bytearray()

    def __call__(self, data: bytes) -> None:
        self._said.extend(data)
        if self._said.strip(b"0123456789\r\n\x04"):
            raise KitError("the board began anew", EXIT_DEVICE)

    def last(self, otherwise: int) -> int:
        """Return the last whole number; the line after it may be cut off. `otherwise` if there is none."""
        lines = self._said.replace(b"\r", b"").replace(b"\x04", b"").split(b"\n")[:-1]
        return next((int(line) for line in reversed(lines) if line.isdigit()), otherwise)


def try_hardware(
    port: Port, cut_power: Callable[[], None] | None, access: Access, say: Callable[[str], object]
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known. At the end the board is reset, and its program starts again.

    cut_power: asks the person at the board for a power cut, and returns after asking; None if nobody is there.
    access: the broker through which the update is sent; say: is told its progress.
    """
    with Board(port, manner=Manner.STOP) as board:
        info = board.info()
        yield from _described(info)
        settings, missing = _settings(board, info, port)
        steps: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            ("flash", lambda: _flash(board)),
            ("power cut", lambda: _power_cut(board, cut_power)),
            ("watchdog", lambda: _watchdog(board)),
            ("deep sleep", lambda: _deep_sleep(board, info)),
        ]
        if missing is None:
            steps.append(("network", lambda: _network(board, settings)))
        for name, step in steps:
            try:
                yield from step()
            except KitError as error:
                yield _failed(name, error)
                # The next check does not depend on this one, if the board answers at all.
                board.reopen(_BACK_WITHIN_S)
                board.exec(scripts.CLEAR)
    if missing is not None:
        yield _not_tried("network", *missing)
    # The program of the board runs again.
    yield _update(info, settings, missing, access, say)


def _failed(name: str, error: KitError) -> Finding:
    text, _, remedy = str(error).partition(" — ")
    return Finding(name, FAIL, text, remedy or "repeat it with the board on another port", error.exit_code)


def _not_tried(name: str, problem: str, remedy: str) -> Finding:
    return Finding(name, WARN, f"not tried: {problem}", remedy)


def _described(info: Info) -> Iterator[Finding]:
    machine = info.machine or info.platform
    build = f", build {info.build}" if info.build else ""
    yield Finding("image", OK, f"MicroPython {info.version} on {machine}{build}")
    yield Finding("firmware", OK, info.app_version or "none")
    heap = f"{info.heap_free // 1024:,} of {info.heap_size // 1024:,} KB"
    files = f"{info.flash_free // 1024:,} of {info.flash_size // 1024:,} KB"
    yield Finding("memory", OK, f"free are {heap} of the heap, and {files} of the file system")


def _settings(board: Board, info: Info, port: Port) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Return the board's settings, and None or why it cannot reach a broker with them, and what to do."""
    missing = missing_network(info, port)
    try:
        configuration = read_configuration(board)
        if configuration.settings is None:
            return {}, missing or ("the board has no settings", "umqtt provision")
        settings, _ = configuration.checked()
    except (KitError, ValueError) as error:
        problem, _, remedy = str(error).partition(" — ")
        return {}, missing or (problem, remedy or "umqtt provision")
    return settings, missing_network(info, port, settings)


def _flash(board: Board) -> Iterator[Finding]:
    program = scripts.TRY_FLASH.format(kilobytes=_FLASH_KB, rounds=_REPLACEMENTS)
    whole, write_ms, read_ms, median_ms, longest_ms = cast(Any, board.value(program, 120.0))
    if not whole:
        yield Finding("flash", FAIL, "a file does not hold what was written", "the flash is worn out or not in order")
        return
    text = (
        f"{_FLASH_KB * 1000 // max(write_ms, 1)} KB/s written, {_FLASH_KB * 1000 // max(read_ms, 1)} KB/s read; "
        f"a file of 64 bytes replaced in {median_ms} ms, at most {longest_ms} ms"
    )
    if longest_ms > _SLOW_MS:
        yield Finding("flash", WARN, text, "a flash that is nearly full is slow: remove files")
    else:
        yield Finding("flash", OK, text)


def _power_cut(board: Board, cut_power: Callable[[], None] | None) -> Iterator[Finding]:
    """Replace a file again and again until the power goes; what the board has reported as written must be there."""
    if cut_power is None:
        yield Finding("power cut", WARN, "not tried: nobody was there to cut the power", "repeat it at a terminal")
        return
    cut_power()
    number, deadline, told = 0, time.monotonic() + _CUT_WITHIN_S, _Numbers()
    try:
        while time.monotonic() < deadline:
            program = scripts.REPLACE.format(first=number, last_ms=int(1000 * _WRITES_FOR_S))
            told = _Numbers()
            board.exec(program, _WRITES_FOR_S + 5, on_output=told)
            number = told.last(number)
    except KitError:
        number = told.last(number)
    else:
        board.exec(scripts.CLEAR)
        yield Finding("power cut", WARN, f"none came within {_CUT_WITHIN_S:g} s", "repeat it, and unplug the board")
        return
    board.reopen(_BACK_WITHIN_S)
    there = board.eval(scripts.REPLACED)
    board.exec(scripts.CLEAR)
    # More may be there than was reported: a USB port drops what it holds when the power goes.
    if isinstance(there, int) and there >= number:
        yield Finding("power cut", OK, f"replacement {number} was the last reported, and {there} was there afterwards")
    else:
        text = f"replacement {number} had been reported, and {there} was there afterwards"
        yield Finding("power cut", FAIL, text, "report it: the board loses what it has written")


def _watchdog(board: Board) -> Iterator[Finding]:
    """Start a watchdog and do not feed it: it must reset the board in its time."""
    told = _Numbers()
    with contextlib.suppress(KitError):
        board.exec(scripts.STARVE.format(timeout_ms=_WATCHDOG_MS), _WATCHDOG_MS / 1000 + _LATE_S, on_output=told)
    lived_ms = told.last(0)
    # No soft reset, because that would become the cause that the board reports.
    board.reopen(_BACK_WITHIN_S, soft_reset=False)
    cause = board.eval("__import__('machine').reset_cause()")
    board.soft_reset()
    text = f"it reset the board after {lived_ms / 1000:.1f} s of {_WATCHDOG_MS / 1000:g} s"
    text = f"{text}; machine.reset_cause() is {cause}"
    if cause != _BY_WATCHDOG:
        text = f"it did not reset the board; machine.reset_cause() is {cause}"
        yield Finding("watchdog", FAIL, text, f"report it: {_BY_WATCHDOG} was expected")
    elif not _EARLY * _WATCHDOG_MS <= lived_ms <= _WATCHDOG_MS + 1000 * _LATE_S:
        yield Finding("watchdog", WARN, text, "report it: it bites at another time than it was told")
    else:
        yield Finding("watchdog", OK, text)


def _deep_sleep(board: Board, info: Info) -> Iterator[Finding]:
    board.leave(f"import machine\nmachine.deepsleep({_SLEEP_MS})")
    began, woke_after_s = time.monotonic(), None
    # Nothing is typed meanwhile, because any interrupt ends the sleep of an rp2. A board that wakes prints its
    # start-up text.
    while (asleep_s := time.monotonic() - began) < _EARLY * _SLEEP_MS / 1000:
        time.sleep(_LISTENS_EVERY_S)
        # A board without its USB cannot be heard.
        with contextlib.suppress(KitError):
            if board.read_output() and asleep_s > _FALLS_ASLEEP_S and woke_after_s is None:
                woke_after_s = asleep_s
    board.reopen(_BACK_WITHIN_S, soft_reset=False)
    cause = board.eval("__import__('machine').reset_cause()")
    board.soft_reset()
    # rp2 resets itself at the end of a deep sleep, and reports such a reset as one by the watchdog.
    expected = _BY_WATCHDOG if info.platform == "rp2" else _BY_DEEP_SLEEP
    text = f"{_SLEEP_MS / 1000:g} s; machine.reset_cause() is {cause} afterwards"
    if woke_after_s is not None:
        yield Finding("deep sleep", FAIL, f"{text}; it woke after {woke_after_s:.1f} s", "report it: it woke too early")
    elif cause != expected:
        yield Finding("deep sleep", FAIL, text, f"report it: {expected} was expected")
    else:
        yield Finding("deep sleep", OK, text)


def _network(board: Board, settings: dict[str, Any]) -> Iterator[Finding]:
    if not settings["wifi"]:
        yield _not_tried("wifi", "no network in the settings", "umqtt provision")
    else:
        finding = try_wifi(board, settings["wifi"])
        yield finding
        if finding.state == FAIL:
            return
    for address in settings["brokers"]:
        scheme, host, port, _ = parse_url(address)
        if scheme in ("mqtts", "wss"):
            yield _tls(board, host, port)
            return
    yield _not_tried("tls", "no broker with TLS in the settings", "umqtt provision")


def _tls(board: Board, host: str, port: int) -> Finding:
    program = scripts.TLS_MEMORY.format(
        host=host, port=port, connect_s=_CONNECTS_WITHIN_S, timeout_ms=int(1000 * _HANDSHAKE_WITHIN_S)
    )
    within_s = _CONNECTS_WITHIN_S + _HANDSHAKE_WITHIN_S + _TLS_BESIDES_S
    problem, took_ms, before, after, system = cast(Any, board.value(program, within_s))
    if problem:
        return Finding("tls", FAIL, f"no handshake with {host}:{port} ({problem})", "umqtt doctor says more")
    text = f"handshake in {took_ms} ms; {before - after:,} bytes of Python's heap, {after:,} left"
    if system is not None:
        text += f"; largest free block of the system's heap {system:,} bytes"
    return Finding("tls", OK, text)


def _update(
    info: Info, settings: dict[str, Any], missing: tuple[str, str] | None, access: Access, say: Callable[[str], object]
) -> Finding:
    """Try an update over the air, if the board has what it needs."""
    try:
        device = info.device_id or ""
        if missing is None and not (info.has_main and info.app_version):
            missing = "the board has no firmware", "umqtt deploy"
        if missing is None and not settings["unsigned_commands"] and device not in Keys().read():
            missing = f"{Keys().file.absolute()} has no key of {device}", "umqtt keys make"
        return _not_tried("update", *missing) if missing else try_update(access, device, say)
    except KitError as error:
        return _failed("update", error)
