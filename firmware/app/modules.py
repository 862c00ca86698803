"""Modules that are needed now and then: heap is scarcer than the time to load them again."""

import gc
import sys


def forget(*names):
    """Let go of the modules app.NAME. Whoever still holds something of them keeps what that needs."""
    package = sys.modules["app"]
    for name in names:
        sys.modules.pop("app." + name, None)
        # The package holds its modules too.
        if hasattr(package, name):
            delattr(package, name)
    gc.collect()
