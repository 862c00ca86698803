"""Runs at every boot, before main.py or the prompt: puts the version to run first on sys.path.

It writes nothing, because tools restart the interpreter as often as they like: main.py counts the boot (startup.py).
"""

import gc

try:
    __import__("boot_choice").start(False)
except Exception as error:  # noqa: BLE001 - whatever is wrong: main.py and the prompt must be reached
    print("boot.py: the version to run was not chosen:", repr(error))

gc.collect()
