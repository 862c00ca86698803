"""The boots of each device, by what gold remembers: the newest, and when each began."""

import numpy as np

from .columns import NEVER
from .gold_state import SEPARATOR, State


def newest_boots(state: State) -> np.ndarray:
    """Per device the row of the boot that was heard last; -1 without one."""
    boots = state.boots
    newest = np.full(len(state.devices), -1, dtype=np.int64)
    heard = np.where(boots["last_us"] == NEVER, boots["born_us"], boots["last_us"])
    order = np.lexsort((_by_name(state), heard))
    order = order[~state.unnumbered[order]]
    newest[boots["device"][order]] = order
    return newest


def _by_name(state: State) -> np.ndarray:
    """The place of each boot in the order of their names, for equal times: row numbers depend on who was met first."""
    names = np.array(list(state.boots.index), dtype=object)
    return np.argsort(np.argsort(names)) if len(names) else np.empty(0, dtype=np.int64)


def boot_starts(state: State, *, unasked: bool = False) -> list[list[int]]:
    """Per device when its boots were first heard of, rising.

    :param unasked: only boots that nobody asked for: neither after an orderly restart, which the boot before announced,
        nor by a soft reset, which is done from a console.
    """
    starts: list[list[int]] = [[] for _ in range(len(state.devices))]
    boots = state.boots
    first = np.minimum(boots["first_us"], boots["born_us"])
    keys, soft = list(boots.index), boots["cause"] == state.texts.get("soft", -2)
    before: dict[int, tuple[str, ...]] = {}
    unnumbered = state.unnumbered
    for row in np.lexsort((_by_name(state), first)).tolist():
        if unnumbered[row]:
            continue
        device = int(boots["device"][row])
        if not (unasked and (soft[row] or before.get(device) in state.restarted)):
            starts[device].append(int(first[row]))
        before[device] = tuple(keys[row].split(SEPARATOR))
    return starts
