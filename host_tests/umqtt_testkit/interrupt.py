"""Ctrl-C for a process of the unix port, with the effect of Ctrl-C on a board.

A board raises KeyboardInterrupt between two bytecodes. The unix port raises it in the handler of SIGINT, wherever the
process is: in the middle of a garbage collection this leaves a locked or damaged heap, in other code a lock that is
never released. So the signal is sent while the process waits for the system, as programs of boards do most of the
time.
"""

from __future__ import annotations

import signal
from pathlib import Path


def interrupts(pid: int) -> bool | None:
    """Return whether Ctrl-C interrupts the process; None if that is unknown.

    It interrupts a running program; at a prompt and after micropython.kbd_intr(-1) it is a byte like any other.
    MicroPython has a handler for SIGINT in the first case only.
    """
    status = _read(pid, "status")
    if status is None:
        return None
    caught = status.partition("\nSigCgt:")[2].partition("\n")[0]
    return bool(int(caught, 16) >> signal.SIGINT - 1 & 1)


def is_at_rest(pid: int) -> bool:
    """Return whether the process waits for the system, and not for a lock. True if that cannot be known."""
    if waits_for_lock(pid):
        return False
    # Read last, because the caller relies on this state at once.
    status = _read(pid, "stat")
    return status is None or status.rpartition(") ")[2].startswith("S")


def waits_for_lock(pid: int) -> bool:
    """Return whether the process waits for one of its own threads. False if that cannot be known."""
    return "futex" in (_read(pid, "wchan") or "")


def _read(pid: int, name: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # not Linux, or it has just ended
        return None
