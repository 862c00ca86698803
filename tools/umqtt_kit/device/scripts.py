"""The programs that run on a board, in its raw REPL. Each is small: a board may have 64 KB of heap.

Their own names begin with `_u`. They answer with one literal that Python reads (ast.literal_eval), or with lines.
"""

# A hardware watchdog that the application started cannot be stopped, and goes on after an interruption, so whatever
# takes long feeds it. Without one, _u_feed does nothing.
NO_WATCHDOG = "def _u_feed(): pass"
WATCHDOG = """
def _u_feed(): pass
try:
    from machine import WDT
    try: _u_feed = WDT(timeout={timeout_ms}).feed
    except ValueError: _u_feed = WDT(timeout={shortest_ms}).feed
except (ImportError, OSError):
    pass
"""

WATCHDOG_SETTING = """
try:
    import json
    with open("/settings.json") as _u_file: _u_value = json.load(_u_file).get("watchdog_ms", -1)
except (OSError, ValueError, AttributeError):
    _u_value = 0
print(_u_value if isinstance(_u_value, int) else 0)
"""

INFO = """
import gc, os, sys
def _u_info():
    def settings():
        import json
        with open("/settings.json") as file:
            value = json.load(file)
        return value if isinstance(value, dict) else {}
    def unique_id():
        import machine
        return machine.unique_id()
    def version():
        import app
        return app.VERSION
    def attempt(function):
        try:
            return function()
        except Exception:  # an application may fail in any way when it is imported
            return None
    def network():
        # What the image has, whatever is on the board: the same board runs images with and without it.
        import socket
        try:
            import network
            return "wifi" if hasattr(network, "WLAN") else "wired"
        except ImportError:
            return "wired"
    def text(value):
        return value if isinstance(value, str) else None
    system = sys.implementation
    flash = os.statvfs("/")
    # littlefs counts blocks that files share twice, and so more than there are when it is full: less than 0 are free,
    # as a number without a sign.
    free = flash[3] if 0 <= flash[3] <= flash[2] else 0
    loaded = "app" in sys.modules
    app_version = attempt(version)
    if not loaded:
        sys.modules.pop("app", None)
    gc.collect()
    device = attempt(settings)
    return {
        "platform": sys.platform, "version": tuple(system.version), "build": getattr(system, "_build", ""),
        "machine": getattr(system, "_machine", ""), "mpy": getattr(system, "_mpy", 0),
        "unique_id": attempt(unique_id), "flash_free": flash[0] * free, "flash_size": flash[0] * flash[2],
        "heap_free": gc.mem_free(), "heap_size": gc.mem_free() + gc.mem_alloc(), "path": sys.path,
        "app_version": text(app_version), "provisioned": device is not None,
        "device_id": text(device.get("device_id")) if device else None,
        "network": attempt(network) or "none",
        "has_main": attempt(lambda: os.stat("/main.py")) is not None,
    }
print(repr(_u_info()))
"""

HASH = """
def _u_hash(paths):
    from binascii import hexlify
    from hashlib import sha256
    buffer = memoryview(bytearray(512))
    for path in paths:
        _u_feed()
        digest = sha256()
        try:
            with open(path, "rb") as file:
                while 1:
                    size = file.readinto(buffer)
                    if not size: break
                    digest.update(buffer[:size])
            print(hexlify(digest.digest()).decode())
        except OSError as error:
            if error.errno not in (2, 21): raise
            print("-")
"""

PUT = """
from binascii import a2b_base64 as _u_decode
import os
def _u_open():
    global _u_file
    _u_file = open("{temporary}", "wb")
def _u_write(text):
    _u_feed()
    _u_file.write(_u_decode(text))
def _u_close(path):
    _u_file.close()
    folders = path.split("/")[1:-1]
    for depth in range(len(folders)):
        try: os.mkdir("/" + "/".join(folders[:depth + 1]))
        except OSError as error:
            if error.errno != 17: raise
    try: os.rename("{temporary}", path)
    except OSError as error:
        # FAT does not rename onto a file that is there; littlefs does, and then the change is atomic.
        if error.errno != 17: raise
        os.remove(path)
        os.rename("{temporary}", path)
"""

GET = """
def _u_get(path):
    from binascii import b2a_base64
    try: file = open(path, "rb")
    except OSError as error:
        if error.errno != 2: raise
        print("-")
        return
    with file:
        while 1:
            _u_feed()
            data = file.read(384)
            if not data: break
            print(b2a_base64(data).decode(), end="")
"""

TREE = """
def _u_list(folder):
    import os
    folders = [folder]
    while folders:
        _u_feed()
        folder = folders.pop()
        for entry in os.ilistdir(folder):
            path = folder.rstrip("/") + "/" + entry[0]
            if entry[1] & 0x4000:
                folders.append(path)
                print(repr((path, -1)))
            else:
                print(repr((path, os.stat(path)[6])))
"""

REMOVE = """
def _u_remove(paths):
    import os
    for path in paths:
        _u_feed()
        try: os.remove(path)
        except OSError as error:
            if error.errno != 2: raise
def _u_rmdir(paths):
    import os
    for path in paths:
        try: os.rmdir(path)
        except OSError as error:
            if error.errno not in (2, 39, 66): raise
"""

MKDIR = """
def _u_mkdir(path):
    import os
    names = path.strip("/").split("/")
    for depth in range(len(names)):
        try: os.mkdir("/" + "/".join(names[:depth + 1]))
        except OSError as error:
            if error.errno != 17: raise
"""
