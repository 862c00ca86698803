"""Ctrl-C for a process of the unix port, so that it has the effect of Ctrl-C on a board.

A board raises KeyboardInterrupt between two bytecodes. The unix port raises it in the handler of SIGINT, wherever the
process is: in the middle of a garbage collection it leaves a locked or a damaged heap behind, in other code a lock that
is never released. So the signal comes when the process waits for the system, as programs of boards do most of the time.
"""

from __future__ import annotations

import signal
from pathlib import Path


def interrupts(pid: int) -> bool | None:
    """Whether Ctrl-C interrupts, as it does while a program runs, or is a byte like any other, as it is at a prompt and
    after micropython.kbd_intr(-1): MicroPython has a handler for SIGINT exactly in the first case. None: unknown.
    """
    status = _read(pid, "status")
    if status is None:
        return None
    caught = status.partition("\nSigCgt:")[2].partition("\n")[0]
    return bool(int(caught, 16) >> signal.SIGINT - 1 & 1)


def is_at_rest(pid: int) -> bool:
    """Whether it waits for the system, and not for a lock. True where that is not to be known."""
    if waits_for_lock(pid):
        return False
    # Last: what is found here is about to be relied on.
    status = _read(pid, "stat")
    return status is None or status.rpartition(") ")[2].startswith("S")


def waits_for_lock(pid: int) -> bool:
    """Whether it waits for one of its own threads. False where that is not to be known."""
    return "futex" in (_read(pid, "wchan") or "")


def _read(pid: int, name: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # not Linux, or it has just ended
        return None
