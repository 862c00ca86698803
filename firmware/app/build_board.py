"""Builds the first part of the application: the board's identity, its clock and its status.

The parts are built one after the other (build.py), each by a module that is unloaded before the next is loaded. What is
not configured is not imported. Lasting objects must not refer to any function or lambda of these modules.
"""

import os
import sys
import time

import startup

from app import VERSION
from app.board import Board
from app.clock import Clock, system_clock
from app.hardware import hardware_id, reset_cause, start_watchdog
from app.identity import Identity
from app.status import Status

_STATE_FOLDER = "/state"


def begin(folder, settings):
    """Return the Board for the settings (as settings_files.load() gives them) in folder.

    Raises SettingsError, naming the key.
    """
    boots = startup.now or __import__("boot_choice").start()
    if settings["watchdog_ms"] and not startup.watchdog:
        start_watchdog(settings["watchdog_ms"])
    board = Board(folder.rstrip("/"), settings, boots, VERSION)
    board.wake = _wake(boots)
    # The boot count in the identity is durable before anything is read, sent or retried.
    device_id = settings["device_id"] or _hardware_id()
    board.identity = identity = Identity(device_id, boots.count, board.wake and board.wake.random_bits)
    board.clock = Clock(time.ticks_ms, time.ticks_diff, system_clock(time, sys.platform))
    extra = {"slot": boots.slot, "cause": reset_cause()}
    if boots.on_trial:
        extra["trial"] = True
    if boots.failed != startup.NONE:
        extra["rolled_back"] = boots.failed
    board.status = Status(identity, VERSION, "safe mode" if boots.safe else "boot", extra)
    board.state_folder = _state_folder(folder)
    return board


def _wake(boots):
    # Returns the state kept over deep sleep, or None: then this is a normal boot.
    if not boots.woke:
        return None
    from app.sleep import woken

    wake = woken(boots.count)
    if wake is None:
        __import__("boot_choice").count_boot(boots)
    return wake


def _hardware_id():
    import machine

    if not hasattr(machine, "unique_id"):
        # Imported here, because it is hardly ever needed.
        from app.settings import SettingsError

        raise SettingsError("settings.json", "device_id", "must be given: this board has no unique_id()")
    return hardware_id(machine.unique_id())


def _state_folder(folder):
    path = folder.rstrip("/") + _STATE_FOLDER
    try:
        os.mkdir(path)
    except OSError:
        # It exists; if it could not be made, the store's first write fails and says so.
        pass
    return path
