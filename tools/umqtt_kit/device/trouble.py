"""Errors on a board, in the board's own words, and what to do about them."""

from __future__ import annotations

from umqtt_cli.errors import EXIT_DEVICE, KitError

#: Heap in bytes with which a board publishes without TLS.
LEAST_HEAP = 96 * 1024
_NEEDED = f"the firmware needs {LEAST_HEAP // 1024} KB, and more with TLS"
#: What to do if the firmware ends with a MemoryError.
HEAP_TOO_SMALL = f"its heap is too small: {_NEEDED}; freeze the library into the image (see the board's README)"

_FULL = "its flash is full: remove files, or see: umqtt doctor"
_REMEDIES = {
    "ENOSPC": _FULL,
    "[Errno 28]": _FULL,
    "OSError: 28": _FULL,
    # ENAMETOOLONG: what littlefs says when there is no room for the name of a new file.
    "[Errno 36]": _FULL,
    "OSError: 36": _FULL,
    "MemoryError": f"its heap is full: reset the board and repeat; if it stays full, it is too small: {_NEEDED}",
    "EIO": "its flash cannot be read or written: erase it with umqtt flash",
}


class DeviceError(KitError):
    """A program raised an exception on the board. traceback: the board's own text; error: its last line."""

    def __init__(self, name: str, traceback: str) -> None:
        self.traceback = traceback
        self.error = last_line(traceback)
        remedy = next((remedy for mark, remedy in _REMEDIES.items() if mark in self.error), None)
        super().__init__(f"{name}: on the board: {self.error}{' — ' + remedy if remedy else ''}", EXIT_DEVICE)


def last_line(traceback: str) -> str:
    """Return the line of a traceback that names the exception."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def no_prompt(talking: bool) -> str:
    """Return why an interrupted board shows no prompt, and what to do. talking: it prints all the time."""
    if talking:
        return (
            "its program prints on and ignores Ctrl-C — press the board's reset button and repeat the command at once; "
            "if that does not help, erase it: umqtt flash --erase"
        )
    return (
        "the board does not answer — is MicroPython on it (umqtt flash), is this its port (umqtt devices)? "
        "Press its reset button and repeat"
    )
