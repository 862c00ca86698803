"""Gives sys, time and the port's module the contents they have on the board that is played; used by board_boot."""

import os
import sys
from collections import namedtuple

import _clock
import _virtual


class _Sys:
    """Stands in for the module sys: a built-in module cannot be changed, and no second one can be created."""


def begin():
    _clock.begin()
    __import__(_virtual.PLATFORM)
    board = _Sys()
    for name in dir(sys):
        if name[:2] != "__":
            setattr(board, name, getattr(sys, name))
    told = sys.implementation
    fields = ("name", "version", "_machine", "_mpy")
    machine = os.getenv("UMQTT_BOARD_MACHINE") or _virtual.PLATFORM
    board.implementation = namedtuple("implementation", fields)(told[0], told[1], machine, told._mpy)
    board.platform = _virtual.PLATFORM
    sys.modules["sys"] = board
    sys.modules["time"] = _clock
    # Remove the modules that only this set-up needed, so that programs do not find them.
    for name in ("_port", "_clock"):
        sys.modules.pop(name, None)
