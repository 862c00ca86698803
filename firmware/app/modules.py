"""Loads and unloads modules that are needed now and then: heap is scarcer than the time to load them again."""

import gc
import sys


def once(module, function, *arguments):
    """Return app.MODULE.FUNCTION(*arguments), and unload the module afterwards."""
    try:
        return getattr(__import__("app." + module, None, None, (function,)), function)(*arguments)
    finally:
        forget(module)


def forget(*names, package="app"):
    """Unload the modules PACKAGE.NAME. Objects of theirs that are still referenced keep working."""
    holder = sys.modules.get(package)
    for name in names:
        sys.modules.pop(package + "." + name, None)
        # The package refers to its modules too.
        if holder and hasattr(holder, name):
            delattr(holder, name)
    gc.collect()
