"""A tool on the cable asks the running application, which goes on afterwards: no restart, and no reading is missed.

    tool    ASK
    board   ASK "ready" newline
    tool    the program in base64, in lines that the port's buffer of 260 bytes can hold; an empty one ends it
    board   ACK after each line; then what the program prints, END, its traceback if it failed, END

The program finds the parts of the application as `board`. Whoever has the cable has the prompt, by Ctrl-C: this gives
no more rights than that.
"""

import gc
import sys
import time
from binascii import a2b_base64

import startup

ASK = b"\x14"
_READY = "\x14ready\n"
_ACK, _END = "\x06", "\x04"
# Programs of one tool come one after the other; the loop goes on between them, at the latest after so long.
_NEXT_MS = 50
_LONGEST_MS = 1000
# A tool that was cut off in the middle holds the loop no longer.
_SILENT_MS = 5000
_MOST_BYTES = 4096


def attend(board, poller):
    """Answer what was typed. Returns poller, or None when nobody can type any more."""
    began = time.ticks_ms()
    while poller.poll(_NEXT_MS):
        typed = sys.stdin.buffer.read(1)
        if not typed:
            return None
        if typed == ASK:
            _serve(board, poller)
        if time.ticks_diff(time.ticks_ms(), began) >= _LONGEST_MS:
            break
    return poller


def _serve(board, poller):
    write = sys.stdout.write
    write(_READY)
    failed = None
    try:
        source = _receive(poller, write)
        if source is None:
            return
        gc.collect()
        dog = startup.watchdog
        exec(source, {"__name__": "attend", "board": board, "_u_feed": dog.feed if dog else gc.collect})
    except Exception as error:  # noqa: BLE001 - a mistake of the tool must not end the application
        failed = error
    write(_END)
    if failed:
        sys.print_exception(failed)
    write(_END)


def _receive(poller, write):
    # The program, None when the tool has fallen silent. Raises ValueError.
    source = bytearray()
    line = bytearray()
    while poller.poll(_SILENT_MS):
        typed = sys.stdin.buffer.read(1)
        if not typed:
            return None
        if typed == ASK:  # it has asked again, for want of an answer
            write(_READY)
            source = bytearray()
            line = bytearray()
            continue
        if typed != b"\n":
            line += typed
            continue
        write(_ACK)
        if not line:
            return source.decode()
        source += a2b_base64(bytes(line))
        if len(source) > _MOST_BYTES:
            raise ValueError("a program of more than %d bytes" % _MOST_BYTES)
        line = bytearray()
    return None
