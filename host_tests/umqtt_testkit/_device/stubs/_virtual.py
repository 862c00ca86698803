"""Shared by the stub modules: the port that is played, the hooks a test sets, and the pipe to the supervisor.

`hooks.json` (see VirtualBoard.hooks) is read at every use, so that a test can change the world while the board runs.
Keys of its objects are text, as JSON requires: pins and I2C addresses are looked up by their number as text.
"""

import json
import os

# "unix" (the default): a host that answers like an esp32 where it plays hardware. Otherwise a value of sys.platform.
PLATFORM = os.getenv("UMQTT_BOARD_PLATFORM") or "unix"
IS_RP2 = PLATFORM == "rp2"

# Opened while the host's files can still be read; once the flash is mounted only this object leads to them.
_host = os.VfsPosix(os.getenv("UMQTT_BOARD_FOLDER") or "/nonexistent")
_control = None


def hooks():
    """Return all hooks as they are now."""
    try:
        with _host.open("/hooks.json", "r") as file:
            return json.load(file)
    except OSError:
        return {}  # no hooks are set


def hook(name, default=None):
    """Return the hook's value, or default if it is not set."""
    return hooks().get(name, default)


def hook_at(name, number, default=None):
    """Return one entry of a hook that is an object with numbers as keys (decimal, or 0x76)."""
    for key, value in hook(name, {}).items():
        if int(key, 0) == number:
            return value
    return default


def connect(control):
    """Use the stream `control` for reports to the supervisor."""
    global _control
    _control = control


def tell(text):
    """Report one line to the supervisor, if there is one."""
    if _control is not None:
        _control.write(text + "\n")
