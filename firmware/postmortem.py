"""Handles the end of the application for main.py: saves its traceback to flash and restarts the board.

Like startup.py it is installed over the cable only, so that a version whose files are broken is reported too.
"""

import gc
import io
import json
import os
import select
import sys

import startup

TRACEBACK_FILE = "/state/traceback.txt"
TOLD_FILE = "/state/traceback.old"
# Keeps a record on the log topic well below the smallest receive buffer in the chain.
_MAX_TRACEBACK_CHARACTERS = 1500
# Time to press Ctrl-C at the console; doubled with every failure in a row, to spare the flash.
_PAUSE_S = 10
_LONGEST_PAUSE_S = 640


def handle(error):
    """Handle the exception that ended main.py: Ctrl-C leads to the prompt, any error restarts the board."""
    boots = startup.now
    if isinstance(error, SystemExit):
        return
    if isinstance(error, KeyboardInterrupt):
        _mark(boots, startup.INTERRUPTED)
        hold_watchdog()
        return
    _let_go()
    keep_traceback(error, boots.count if boots else 0)
    _mark(boots, startup.CRASHED)
    print(format_traceback(error))
    try:
        import machine
    except ImportError:
        return
    if not hasattr(machine, "reset"):
        return
    pause_s = pause_after(boots.failures if boots else 0)
    _tell(pause_s)
    dog = _watchdog()
    console = select.poll()
    console.register(sys.stdin, select.POLLIN)
    for left_s in range(pause_s, 0, -1):
        # Answer any input, which may come from a tool, with the time left.
        if console.poll(1000) and sys.stdin.buffer.read(1):
            _tell(left_s)
        if dog:
            dog.feed()
    machine.reset()


def pause_after(failures):
    """Return the seconds until the restart. failures: how many boots in a row have failed."""
    return min(_PAUSE_S << min(failures, 8), _LONGEST_PAUSE_S)


def _tell(left_s):
    print("restarting in %d s; Ctrl-C for the prompt" % left_s)


def _let_go():
    # Unloads the application, which may have run out of heap. The traceback keeps alive what it needs.
    for name in list(sys.modules):
        if name.startswith(("app.", "umqtt_robust")):
            del sys.modules[name]
    if "app" in sys.modules:
        package = sys.modules["app"]
        for name in dir(package):
            if name[0] != "_":
                delattr(package, name)
    gc.collect()


def keep_traceback(error, boot, path=TRACEBACK_FILE, told=TOLD_FILE):
    """Write the traceback of error to flash: a line of JSON, {"n": crashes so far, "boot": count}, and the text."""
    text = format_traceback(error)[-_MAX_TRACEBACK_CHARACTERS:]
    number = 1 + max(read_traceback(path)[0].get("n", 0), read_traceback(told)[0].get("n", 0))
    try:
        with open(path, "w") as file:
            file.write("%s\n%s" % (json.dumps({"n": number, "boot": boot}), text))
    except (OSError, MemoryError) as reason:
        # The program ends with error either way, and the console shows it.
        print("traceback not kept in %s: %r" % (path, reason))


def read_traceback(path):
    """Return ({"n": …, "boot": …}, text) of a file that keep_traceback() wrote, or ({}, None) if there is none."""
    try:
        with open(path) as file:
            head, _, text = file.read().partition("\n")
        return json.loads(head), text
    except (OSError, ValueError):
        return {}, None


def format_traceback(error):
    """Return the text that MicroPython (or CPython, where the tests run too) prints for error."""
    if hasattr(sys, "print_exception"):
        stream = io.StringIO()
        sys.print_exception(error, stream)
        return stream.getvalue()
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def hold_watchdog():
    """Feed the watchdog from a timer at the prompt, if the board has one: the watchdog cannot be stopped."""
    dog = _watchdog()
    if not dog:
        return
    try:
        from machine import Timer

        Timer(0 if sys.platform == "esp32" else -1).init(period=1000, callback=lambda timer: dog.feed())
    except (ImportError, ValueError, OSError, AttributeError) as reason:
        print("the watchdog will restart the board soon: %r" % reason)


def _watchdog():
    # The watchdog, if the application got as far as starting it.
    return getattr(startup, "watchdog", None)


def _mark(boots, state):
    # A crash of a STEADY boot does not count as a failure.
    if boots and (state != startup.CRASHED or boots.state() != startup.STEADY):
        try:
            os.stat("/state")
            boots.mark(state)
        except OSError as reason:
            print("the end of this boot is not noted: %r" % reason)
