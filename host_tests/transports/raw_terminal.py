"""A pseudo-terminal used as a serial line: nothing is translated, and a read without data returns at once."""

from __future__ import annotations

import os
import pty
import termios
import tty


def open_raw_terminal() -> tuple[int, int, str]:
    """Return descriptors of the line's far end and of this end, and the path of this end. The caller closes both."""
    outer, inner = pty.openpty()
    tty.setraw(inner)
    settings = termios.tcgetattr(inner)
    settings[6][termios.VMIN] = 0
    termios.tcsetattr(inner, termios.TCSANOW, settings)
    return outer, inner, os.ttyname(inner)
