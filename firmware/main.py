"""Starts the application. Every decision lies in startup.py and in the package app; see app/__init__.py."""

import os

import startup

try:
    startup.begin()
    if "portal.json" in os.listdir("/"):
        __import__("portal").open_if_wanted()
    # Within the try: a file missing after a deployment cut short is a crash to be told about like any other.
    from app import start

    start.run()
except BaseException as error:  # noqa: BLE001 - it is raised again
    import postmortem

    # Kept in flash and published after the next boot; the console shows it now.
    postmortem.handle(error)
    raise
