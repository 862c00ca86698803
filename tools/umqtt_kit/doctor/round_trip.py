"""An update over the air and back: a device gets a new version, confirms it, and goes back to the version before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from umqtt_cli.errors import KitError
from umqtt_kit.device_commands import NoReply, Remote, new_id, result_of
from umqtt_kit.doctor.checks import FAIL, OK, WARN, Finding
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.order import Wanted, ping, roll_back, update

# A board that was just reset joins its Wi-Fi, sets its clock and connects.
_ANSWERS_WITHIN_S = 90.0
_ASKED_EVERY_S = 5.0
_CONFIRMED_WITHIN_S = 600.0
# Differs from every released version, with the same numbers: no board takes it for an older one.
_SUFFIX = "+check"
_LONGEST_VERSION = 40


def try_update(access: Access, device: str, say: Callable[[str], object]) -> Finding:
    """Send a device the firmware of this installation under another version; roll it back once it is confirmed.

    say: is told the progress. The result is WARN if the device cannot be reached, because nothing was sent then. Raises
    KitError if it fails at the update.
    """
    try:
        before = _first_answer(access, device)
    except KitError as error:
        text, _, remedy = str(error).partition(" — ")
        return Finding("update", WARN, f"not tried: {text}", f"{remedy}; the broker is that of --broker")
    version = str(before.get("fw"))[: _LONGEST_VERSION - len(_SUFFIX)] + _SUFFIX
    began = time.monotonic()
    sent = update(access, device, Wanted(version, timeout_s=_CONFIRMED_WITHIN_S), say)
    confirmed = time.monotonic()
    try:
        roll_back(access, device, _CONFIRMED_WITHIN_S, say)
    except KitError as error:
        raise KitError(f"{version} is confirmed, and stays: {error}", error.exit_code) from error
    back_s = time.monotonic() - confirmed
    after = ping(access, device, _CONFIRMED_WITHIN_S, lambda: None)
    text = (
        f"{sent.result.get('version')} in slot {sent.result.get('slot')} confirmed after {confirmed - began:.0f} s; "
        f"{after.get('fw')} in slot {after.get('slot')} {back_s:.0f} s after the rollback"
    )
    if sent.result.get("version") != version or _running(after) != _running(before):
        expected = f"{version}, then {before.get('fw')} in slot {before.get('slot')}, was expected"
        return Finding("update", FAIL, text, f"report it: {expected}")
    return Finding("update", OK, text)


def _first_answer(access: Access, device: str) -> dict[str, Any]:
    """Return the answer to a ping, which is repeated: a new board may not have subscribed yet. Raises KitError."""
    # Under one id, the device carries it out only once.
    deadline, command_id = time.monotonic() + _ANSWERS_WITHIN_S, new_id()
    with Remote(access, device) as remote:
        while True:
            try:
                return dict(result_of(remote.ask("ping", {}, _ASKED_EVERY_S, command_id), device, "ping"))
            except NoReply as silence:
                if time.monotonic() > deadline:
                    problem = f"{device} did not answer within {_ANSWERS_WITHIN_S:g} s: {silence.reason}"
                    raise KitError(f"{problem} — see what it says: umqtt logs", silence.exit_code) from silence


def _running(told: dict[str, Any]) -> tuple[object, object]:
    return told.get("fw"), told.get("slot")
