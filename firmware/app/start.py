"""Runs the application."""

from app.modules import once


def run(folder="/"):
    """Run the Application of the settings in folder, for ever. Raises SettingsError, naming the key.

    If the flash fails, it is built again with its outbox in RAM: a board that can be reached can be repaired.
    """
    store_error = None
    while True:
        store_error = once("build", "make", folder, store_error).run()
