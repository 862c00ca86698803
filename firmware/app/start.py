"""Makes the application from the settings, and runs it.

What is needed once is forgotten before the next is loaded, and what stays is loaded as late as it can be: on a small
board the heap is never as full as while the application is made.
"""

import select
import sys
import time

import startup

from app.modules import forget, once


def run(folder="/"):
    """Run the Application of the settings in folder, for ever. Raises SettingsError, naming the key.

    When the flash fails, it is made again with its outbox in RAM: a board that can be reached can be mended.
    """
    store_error = None
    while True:
        store_error = make(folder, store_error).run()


def make(folder="/", store_error=None):
    """The Application of the settings in folder, made. Raises SettingsError, naming the key."""
    if startup.now and startup.now.safe:
        # Whatever made the boots fail, a change of the settings may have.
        _once("settings_trial", "give_back", folder.rstrip("/"), startup.now.count)
    settings, secrets = _once("settings_files", "load", folder)
    board = _once("assembly", "assemble", folder, settings, secrets, store_error)
    from app.application import Application

    _once("assembly_parts", "add_parts", board, secrets)
    return Application(board, time.sleep_ms, _console())


def _console():
    # Says that a tool on the cable asks; attend.py is loaded when one does.
    console = select.poll()
    console.register(sys.stdin, select.POLLIN)
    return console


def _once(module, function, *arguments):
    """app.MODULE.FUNCTION(*arguments), and none of it is left behind."""
    try:
        return once(module, function, *arguments)
    finally:
        forget("settings_files", "settings", "hardware")
        # The client loads them again when it needs them, and after its making it hardly ever does.
        forget("checks", "servers", "topics", package="umqtt_robust")
