"""The boots of each device, from the state of gold: which one is the newest, and when each began."""

import numpy as np

from .columns import NEVER
from .gold_state import DAY_US, State


def heard_us(state: State) -> np.ndarray:
    """Return, per boot, when it was last heard, or when its first status came if it has no readings."""
    boots = state.boots
    return np.where(boots["last_us"] == NEVER, boots["born_us"], boots["last_us"])


def heard_days(state: State) -> np.ndarray:
    """Return the day of :func:`heard_us`, per boot, as days since 1970-01-01."""
    return heard_us(state) // DAY_US


def newest_boots(state: State) -> np.ndarray:
    """Return, per device, the row of the boot that was last heard, or -1 if it has no boot."""
    boots = state.boots
    newest = np.full(len(state.devices), -1, dtype=np.int64)
    # Names decide between equal times; row numbers would depend on which boot was met first.
    order = np.lexsort((boots.ranks, heard_us(state)))
    order = order[~state.unnumbered[order]]
    newest[boots["device"][order]] = order
    return newest


def started_us(state: State) -> np.ndarray:
    """Return, per boot, when it was first heard of."""
    return np.minimum(state.boots["first_us"], state.boots["born_us"])


def in_order(state: State) -> np.ndarray:
    """Return the rows of the boots, sorted by device and by when they were first heard of."""
    boots = state.boots
    rows = np.lexsort((boots.ranks, started_us(state), boots["device"]))
    return rows[~state.unnumbered[rows]]


def boot_starts(state: State, *, unasked: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, per boot, the device, when the boot was first heard of, and its row; sorted by device and time.

    :param unasked: leave out boots that were to be expected: after a boot that ended with a goodbye, or by a soft
        reset, which is done from a console. The first boot in the state is left out too, if the one before it has
        left the state: nothing tells how that one ended, but no loop that is still shown begins so (gold_archive).
    """
    boots = state.boots
    rows = in_order(state)
    if unasked:
        device = boots["device"][rows]
        after_goodbye = np.append(False, _ended_with_goodbye(state)[rows][:-1])
        asked = np.where(follows(device), after_goodbye, state.devices["old_boots"][device] > 0)
        soft = boots["cause"] == state.texts.get("soft", -2)
        rows = rows[~(soft[rows] | asked)]
    return boots["device"][rows], started_us(state)[rows], rows


def _ended_with_goodbye(state: State) -> np.ndarray:
    """Return, per boot, whether the device ended it on purpose, or last went to sleep in it."""
    boots = state.boots
    # What a boot has not delivered when it restarts comes in the next one. Before a sleep all is delivered, so
    # what comes later was said after a wake, which may have ended in a crash.
    awake_us = np.maximum(boots["last_us"], boots["fw_us"])
    asleep = (boots["slept_us"] != NEVER) & (boots["slept_us"] >= awake_us)
    return asleep | (boots["ended_us"] >= started_us(state))


def follows(devices: np.ndarray) -> np.ndarray:
    """Return, for each entry, whether the previous entry is the same device."""
    return np.append(False, devices[1:] == devices[:-1]) if len(devices) else np.empty(0, dtype=bool)
