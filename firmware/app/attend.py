"""Runs programs of a tool on the cable inside the running application, without a restart or a missed reading.

    tool    ASK
    board   ASK "ready" newline
    tool    the program in base64, in lines that fit the port's buffer of 260 bytes; an empty line ends it
    board   ACK after each line; then what the program prints, END, its traceback if it failed, END

TELL in place of ASK makes the board print the lines of its log once more.

In the program, `board` is the app.board.Board. Anyone with the cable can get the prompt by Ctrl-C, so this gives no
additional rights.
"""

import gc
import sys
import time
from binascii import a2b_base64

import startup

ASK = b"\x14"
TELL = b"\x12"
_READY = "\x14ready\n"
_ACK, _END = "\x06", "\x04"
# Wait up to _NEXT_MS for the tool's next program; go back to the main loop after _LONGEST_MS at the latest.
_NEXT_MS = 50
_LONGEST_MS = 1000
# A tool that falls silent in the middle holds up the main loop no longer than this.
_SILENT_MS = 5000
_MOST_BYTES = 4096


def attend(board, poller):
    """Serve the requests on the console. Returns poller, or None at the end of the input."""
    began = time.ticks_ms()
    while poller.poll(_NEXT_MS):
        typed = sys.stdin.buffer.read(1)
        if not typed:
            return None
        if typed == ASK:
            _serve(board, poller)
        elif typed == TELL:
            for line in board.log.lines():
                print(line)
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
    # Returns the program, or None if the tool falls silent. Raises ValueError.
    source = bytearray()
    line = bytearray()
    while poller.poll(_SILENT_MS):
        typed = sys.stdin.buffer.read(1)
        if not typed:
            return None
        if typed == ASK:  # the tool got no answer and asks again
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
