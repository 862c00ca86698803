"""A pseudo-terminal that is a serial line: nothing is translated, and a read without data returns at once."""

from __future__ import annotations

import os
import pty
import termios
import tty


def open_raw_terminal() -> tuple[int, int, str]:
    """Descriptors of the line's other end and of this one, and the path of this one. The caller closes both."""
    outer, inner = pty.openpty()
    tty.setraw(inner)
    settings = termios.tcgetattr(inner)
    settings[6][termios.VMIN] = 0
    termios.tcsetattr(inner, termios.TCSANOW, settings)
    return outer, inner, os.ttyname(inner)
