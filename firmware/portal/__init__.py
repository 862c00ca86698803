"""The setup portal: lets a phone set up a board that knows no network, or whose button is pressed at boot.

It opens only if /portal.json exists, which `umqtt provision --portal` writes: {"code": "K7QF-M2XA-9TRW"} and, if the
board has one, "button": the number of a pin, or "bootsel". This module decides; the others are loaded when it opens:

    server  the access point, its sockets, and the handling of the form
    http    requests and the page
    dns     answers every name with the board's address
    code    the code, and the limit on wrong ones

Like startup.py it is installed over the cable only. Of the package app it uses the modules that store the settings.
"""

import json
import os
import sys
import time

import startup

FILE = "/portal.json"
_BOOTSEL = "bootsel"
# Held at power-on, the same button starts the boot loader, so it has to be pressed after that.
_WINDOW_MS = 3_000
_LOOK_MS = 50


def open_if_wanted():
    """Serve the portal and restart the board, or return if the portal is not wanted."""
    try:
        if not (startup.now and startup.now.woke):
            _open()
    finally:
        # Not needed after this.
        sys.modules.pop("portal", None)


def _open():
    values = read(FILE)
    code, button = values.get("code"), values.get("button")
    if not isinstance(code, str):
        print("portal: %s is damaged: umqtt provision --portal" % FILE)
        return
    known = bool(networks(read("/settings.json")))
    if known and not _is_asked_for(button):
        return
    try:
        import network

        network.WLAN
    except (ImportError, AttributeError):
        print("portal: the image on this board has no Wi-Fi")
        return
    if "app" not in sys.modules:
        # The real package would load the client too, which leaves the heap in pieces too small for a page.
        Package.__path__ = _path_of_app()
        sys.modules["app"] = Package
    from portal.server import serve

    serve("", network, code, button, known)


class Package:
    """A stand-in for the package app, whose modules are then imported one by one."""

    __path__ = ""


def read(path):
    """Return the object in a JSON file, {} if the file is missing or damaged."""
    for suffix in ("", ".new", ".was"):
        try:
            with open(path + suffix) as file:
                values = json.load(file)
            return values if isinstance(values, dict) else {}
        except (OSError, ValueError):
            continue
    return {}


def networks(settings):
    """Return the SSIDs in settings, [] if settings are damaged."""
    known = settings.get("wifi")
    return known if isinstance(known, list) else []


def _path_of_app():
    for folder in sys.path:
        for name in ("/app/replace.mpy", "/app/replace.py"):
            try:
                os.stat(folder + name)
                return folder + "/app"
            except OSError:
                pass
    return ".frozen/app"


def _is_asked_for(button):
    if button is None:
        return False
    print("portal: press the button within %d s to open it" % (_WINDOW_MS // 1000))
    for _ in range(_WINDOW_MS // _LOOK_MS):
        if _is_pressed(button):
            return True
        time.sleep_ms(_LOOK_MS)
    return False


def _is_pressed(button):
    try:
        if button == _BOOTSEL:
            from rp2 import bootsel_button

            return bool(bootsel_button())
        from machine import Pin

        return Pin(button, Pin.IN, Pin.PULL_UP).value() == 0
    except (ImportError, TypeError, ValueError):
        return False  # another board's button; without a network the portal opens anyway
