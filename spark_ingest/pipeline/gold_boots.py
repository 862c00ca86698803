"""The boots of each device, by what gold remembers: the newest, and when each began."""

import numpy as np

from .columns import NEVER
from .gold_state import DAY_US, SEPARATOR, State


def heard_us(state: State) -> np.ndarray:
    """Per boot when it was heard last, or without a reading when it was first heard of."""
    boots = state.boots
    return np.where(boots["last_us"] == NEVER, boots["born_us"], boots["last_us"])


def heard_days(state: State) -> np.ndarray:
    """The day of :func:`heard_us`, from 1970-01-01."""
    return heard_us(state) // DAY_US


def newest_boots(state: State) -> np.ndarray:
    """Per device the row of the boot that was heard last; -1 without one."""
    boots = state.boots
    newest = np.full(len(state.devices), -1, dtype=np.int64)
    # Names decide between equal times: row numbers depend on who was met first.
    order = np.lexsort((boots.ranks, heard_us(state)))
    order = order[~state.unnumbered[order]]
    newest[boots["device"][order]] = order
    return newest


def boot_starts(state: State, *, unasked: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Of each boot the device and when it was first heard of; by device, times rising.

    :param unasked: only boots that nobody asked for: neither after an orderly restart, which the boot before announced,
        nor by a soft reset, which is done from a console.
    """
    boots = state.boots
    first = np.minimum(boots["first_us"], boots["born_us"])
    rows = np.lexsort((boots.ranks, first, boots["device"]))
    rows = rows[~state.unnumbered[rows]]
    if unasked:
        ended = np.zeros(len(boots), dtype=bool)
        keys = (device_id + SEPARATOR + boot for device_id, boot in state.restarted)
        ended[[boots.index[key] for key in keys if key in boots.index]] = True
        soft = boots["cause"] == state.texts.get("soft", -2)
        rows = rows[~(soft[rows] | (follows(boots["device"][rows]) & np.append(False, ended[rows][:-1])))]
    return boots["device"][rows], first[rows]


def follows(devices: np.ndarray) -> np.ndarray:
    """Which are the same device as the one before."""
    return np.append(False, devices[1:] == devices[:-1]) if len(devices) else np.empty(0, dtype=bool)
