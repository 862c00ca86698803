"""Builds the application from the settings, in four parts.

Modules needed only once, this one included, are unloaded before the next is loaded, and those that stay are loaded as
late as possible: on a small board the heap is never as full as while the application is built. With the code of all
four parts there at once, an ESP32 would need 80 KB of heap instead of 76.
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
    # What a board runs:
    # watchdog, state kept over deep sleep, identity, clock, status
    board = _once("build_board", "begin", folder, settings)
    # MQTT client with its outbox in flash, log, gaps
    _once("build_client", "add_client", board, secrets, store_error)
    # the main loop, which takes its place in the heap before what follows
    from app.application import Application

    # crash report, restart, files of readings, Wi-Fi, NTP, commands
    _once("build_radio", "add_parts", board, secrets)
    # sensors, readings, discovery, sleep, health, settings on trial
    _once("build_readings", "add_readings", board)
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
