"""How a command fails: one line that says what is wrong and what to do next, and one of these exit codes."""

from __future__ import annotations

EXIT_OK = 0
# Readings were lost or duplicated, or the run that should have counted them could not be completed.
EXIT_LOST = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3
EXIT_NETWORK = 4
EXIT_DEVICE = 5
# Something is missing on this machine: Java, MicroPython, a package.
EXIT_MISSING = 6
# The board takes readings, and sensors failed in the first one.
EXIT_SENSORS = 7
# A defect of umqtt itself, not a mistake of the user (EX_SOFTWARE of sysexits.h).
EXIT_DEFECT = 70
# What a shell reports for a program ended by Ctrl-C: 128 + SIGINT.
EXIT_INTERRUPTED = 130


class KitError(Exception):
    """An error for the user. message: one line that names the next step; exit_code: one of the codes above."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ReaderGone(Exception):
    """Nobody reads stdout any more (`… | head`): the reader has seen enough, and the command ends silently."""


class Interrupted(BaseException):
    """SIGTERM or SIGHUP arrived. Handled like Ctrl-C; like KeyboardInterrupt, it is no Exception."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number
