"""Delays where a busy machine causes them: at sockets, threads, processes and the disk.

Python imports this file at start-up if its folder is on PYTHONPATH, so every Python process of a test run has it.
UMQTT_DELAYS is the seed; without it nothing happens. The delays are drawn from the seed and the command line, so that
the same process of the same run is delayed at the same calls.
"""

import os
import sys

# (chance, longest delay in seconds), drawn one after the other: occasionally a lost time slice, rarely a machine that
# stood still.
_AT_A_CALL = ((0.01, 0.02), (0.0005, 0.3))
_AT_A_START = ((0.3, 0.1), (0.05, 1.0))


def _install(seed: str) -> None:
    import random
    import select
    import socket
    import ssl
    import subprocess
    import threading
    import time

    # Tests replace these functions; the delays keep the originals.
    sleep = time.sleep
    rng = random.Random(f"{seed} {sys.orig_argv}")
    os.register_at_fork(after_in_child=lambda: rng.seed(f"{seed} {os.getpid()}"))

    def pause(chances=_AT_A_CALL) -> None:
        for chance, longest_s in chances:
            if rng.random() < chance:
                sleep(rng.random() * longest_s)

    def delay(owner, name: str, *, before: bool = True, after: bool = False, chances=_AT_A_CALL) -> None:
        original = getattr(owner, name)

        def delayed(*args, **kwargs):
            if before:
                pause(chances)
            try:
                return original(*args, **kwargs)
            finally:
                if after:
                    pause(chances)

        delayed.__name__, delayed.__doc__ = name, original.__doc__
        setattr(owner, name, delayed)

    for name in ("connect", "accept", "recv", "recv_into", "send", "sendall"):
        delay(socket.socket, name)
    for name in ("recv", "recv_into", "send", "sendall", "do_handshake"):
        delay(ssl.SSLSocket, name)
    delay(threading.Condition, "wait", before=False, after=True)
    delay(subprocess.Popen, "__init__", before=False, after=True, chances=_AT_A_START)
    for name in ("fsync", "fdatasync"):
        delay(os, name)

    start = threading.Thread.start

    def start_late(self) -> None:
        run = self.run

        def late() -> None:
            pause(_AT_A_START)
            run()

        self.run = late
        start(self)

    threading.Thread.start = start_late

    if hasattr(select, "epoll"):
        import selectors

        delay(selectors.EpollSelector, "select", before=False, after=True)

    pause(_AT_A_START)


if os.environ.get("UMQTT_DELAYS"):
    _install(os.environ["UMQTT_DELAYS"])
