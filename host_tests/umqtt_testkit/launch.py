"""Starts MicroPython so that it cannot outlive its starter. Run as a script, with `python -I -S`.

    launch.py GUARD FOLDER ARGUMENT...      GUARD: terminal, parent; FOLDER: of the wheel's module, or - for
    none

terminal: stdin becomes the controlling terminal, and the kernel hangs up (SIGHUP) when its other side is gone.
parent: the kernel kills the process when the starting thread ends (Linux).

The wheel's own command would load a whole CPython with site-packages; isolated and without `site` the same
interpreter starts three times faster and is 3 MB smaller, which matters with a hundred boards. `_signal` is used
instead of `signal` for the same reason: the enumerations that `signal` adds take a fourth of the time.
"""

import _signal  # pyrefly: ignore[missing-import]
import os
import sys

_PR_SET_PDEATHSIG = 1


def main(guard: str, folder: str, *arguments: str) -> None:
    # A starter under nohup, or in a shell's background, would have passed on an ignored SIGHUP.
    _signal.signal(_signal.SIGHUP, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if guard == "terminal":
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    elif guard == "parent" and sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if folder == "-":
        os.execvp(arguments[0], arguments)
    sys.path.append(folder)
    import micropython_run  # pyrefly: ignore[missing-import]

    sys.exit(micropython_run.run_main(["micropython", *arguments]))


main(*sys.argv[1:])
