"""Builds the application from the settings, in four parts.

Modules needed only once, this one included, are unloaded before the next is loaded, and those that stay are loaded as
late as possible: on a small board the heap is never as full as while the application is built.
"""

import select
import sys
import time

import startup

from app.modules import forget, once


def make(folder="/", store_error=None):
    """Build and return the Application of the settings in folder. Raises SettingsError, naming the key."""
    if startup.now and startup.now.safe:
        # A change of the settings may be what made the boots fail.
        _once("settings_trial", "give_back", folder.rstrip("/"), startup.now.count)
    settings, secrets = _once("settings_files", "load", folder)
    board = _once("assembly", "begin", folder, settings)
    _once("assembly_client", "add_client", board, secrets, store_error)
    from app.application import Application

    _once("assembly_parts", "add_parts", board, secrets)
    _once("assembly_readings", "add_readings", board)
    return Application(board, time.sleep_ms, _console())


def _console():
    # Returns a poll object for input from a tool on the cable; attend.py is loaded when there is some.
    console = select.poll()
    console.register(sys.stdin, select.POLLIN)
    return console


def _once(module, function, *arguments):
    """Return app.MODULE.FUNCTION(*arguments), and unload the module and those that it loaded."""
    try:
        return once(module, function, *arguments)
    finally:
        forget("settings_files", "settings", "hardware")
        # The client loads them again when needed, which is rare once it is created.
        forget("checks", "servers", "topics", package="umqtt_robust")
