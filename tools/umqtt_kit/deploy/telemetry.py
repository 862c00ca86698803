"""Waits for the first reading of a board after its start, by asking the board on its cable.

The board knows best what became of the reading: it connects with its own client id, credentials and CA, and reports
why it cannot in words of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, KitError
from umqtt_cli.escape import printable
from umqtt_kit.deploy.console import Console, FirmwareStopped
from umqtt_kit.device import Board

_ASKED_EVERY_S = 0.1
_ANSWERS_WITHIN_S = 2.0

# health.delivered: the broker has acknowledged a reading of this boot.
_STATE = """
print(repr({"id": board.identity.device_id, "boot": board.identity.boot, "safe": board.boots.safe,
            "delivered": board.health.delivered, "m": board.telemetry and board.telemetry.metrics,
            "lines": board.log.lines()}))
"""


def first_reading(board: Board, timeout_s: float, tell: Callable[[str], object]) -> dict[str, Any]:
    """Return {"id", "boot", "m"} of a board once its broker has acknowledged a reading. m: of the newest reading.

    Call it after board.reset(). tell: called with each warning of the board, once. Raises KitError: exit code 4 if no
    reading arrives in time, 5 if the firmware stops, does not answer or runs in safe mode.
    """
    console = Console(board.name)
    board.follow(console.hear)
    deadline = time.monotonic() + timeout_s
    reason = ""
    told: set[str] = set()
    state: dict[str, Any] | None = None
    while True:
        try:
            state = cast(Any, board.value(_STATE, _ANSWERS_WITHIN_S))
        except FirmwareStopped:
            raise
        except KitError:
            # It still starts, waits for its network, or sleeps.
            board.follow(console.hear)
        if state is not None:
            if state["delivered"]:
                return {key: state[key] for key in ("id", "boot", "m")}
            if state["safe"]:
                raise KitError(f"{board.name}: the firmware runs in safe mode — see why: umqtt doctor", EXIT_DEVICE)
            for line in state["lines"]:
                level, _, text = line.partition(" ")[2].partition(" ")
                if level in ("warning", "error") and text not in told:
                    told.add(text)
                    tell(f"{state['id']}: {printable(text)}")
                    if text.startswith(("broker: ", "Wi-Fi: ")):
                        reason = printable(text)
        if time.monotonic() > deadline:
            break
        time.sleep(_ASKED_EVERY_S)
    if state is None:
        raise KitError(
            f"{board.name}: the firmware did not answer within {timeout_s:g} s — see what it prints: umqtt logs",
            EXIT_DEVICE,
        )
    raise KitError(
        f"{state['id']}: no reading has reached the broker within {timeout_s:g} s"
        + (f": {reason}" if reason else " — see what is wrong: umqtt doctor"),
        EXIT_NETWORK,
    )
