"""Starts the application. boot_choice.py and the package app make all decisions; see app/__init__.py."""

import os

try:
    __import__("boot_choice").start()
    if "portal.json" in os.listdir("/"):
        __import__("portal").open_if_wanted()
    # Imported inside the try: a file missing after an interrupted deployment is reported like any other crash.
    from app import start

    start.run()
except BaseException as error:  # noqa: BLE001 - it is raised again
    import postmortem

    # The traceback is saved to flash and published after the next boot; the console shows it now.
    postmortem.handle(error)
    raise
