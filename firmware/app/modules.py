"""Modules that are needed now and then: heap is scarcer than the time to load them again."""

import gc
import sys


def once(module, function, *arguments):
    """app.MODULE.FUNCTION(*arguments), and the module is not left behind."""
    try:
        return getattr(__import__("app." + module, None, None, (function,)), function)(*arguments)
    finally:
        forget(module)


def forget(*names, package="app"):
    """Let go of the modules PACKAGE.NAME. Whoever still holds something of them keeps what that needs."""
    holder = sys.modules.get(package)
    for name in names:
        sys.modules.pop(package + "." + name, None)
        # The package holds its modules too.
        if holder and hasattr(holder, name):
            delattr(holder, name)
    gc.collect()
