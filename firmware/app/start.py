"""Runs the application."""

import gc

from app.modules import once

# Bytes of new objects after which garbage is collected. If that came only when the heap is full, garbage would lie
# between all that lasts, and a file, which takes 1.1 KB in one piece, could not be opened in a small heap.
_COLLECT_EVERY = 2048


def run(folder="/"):
    """Run the Application of the settings in folder, for ever. Raises SettingsError, naming the key.

    If the flash fails, it is built again with its outbox in RAM: a board that can be reached can be repaired.
    """
    gc.threshold(_COLLECT_EVERY)
    store_error = None
    while True:
        store_error = once("build", "make", folder, store_error).run()
