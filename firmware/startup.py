"""The records of the boots: which version of the application runs, and how many boots in a row have failed.

It lies beside boot.py with boot_choice.py, which imports it, reads the records and chooses the version. Both are
installed over the cable only and import nothing of a version, so they work whatever came over the air. There are three
records, each one line of words and their CRC-32 in hex:

    /ota/current                  RUN TRIAL TRIES PREVIOUS FAILED: the version that runs, the version on trial, how
                                  often it may still be started, the previous version, and the last one that failed
                                  its trial or was rolled back from; each version is base, a, b or -
    /state/boot-a, /state/boot-b  COUNT FAILURES: boots, and how many before this one failed in a row; written in turn
    /state/mark                   COUNT STATE: how boot COUNT went, CONFIRMED, STEADY, CRASHED, INTERRUPTED or RETRY

A boot costs two small writes: its count, before anything else runs, and its mark. After a healthy hour it writes a
third, STEADY. Before that, a boot fails if it crashes or the watchdog ends it, and an unconfirmed boot also if a
reset ends it; a power cut or Ctrl-C at the console is never a failure. After MOST_FAILURES failures in a row the
next boot is in safe mode and runs the base version. RETRY leaves safe mode for one boot; if that boot fails, the
next one is in safe mode again.

A rollback never returns to a version that failed its trial or that was itself rolled back from.

A power cut at any moment leaves every record usable: the pointer is written to a temporary file and renamed, the
count goes to the older of two files, and a torn mark counts as no mark.
"""

import os
from binascii import crc32

BASE = "base"
SLOTS = ("a", "b")
NONE = "-"
CONFIRMED, STEADY, CRASHED, INTERRUPTED, RETRY = "c", "s", "x", "i", "r"
MOST_FAILURES = 3

_MARK = "/state/mark"
# The reset cause on a port that reports none; equal to no constant of machine.
UNKNOWN = -1

# The Startup of this boot, once boot_choice.start() has counted it.
now = None
# machine.WDT once the application has started it; it cannot be stopped, so postmortem.py has to keep feeding it.
watchdog = None


class Startup:
    """The state of this boot, filled in by boot_choice.read_boots(). root: folder of the board's files, "" on a board.

    slot: the version that runs; folder: its folder, "" for base; on_trial: bool; count: number of boots; failures:
    failed boots in a row before this one; safe: bool, safe mode; woke: bool, a wake from deep sleep that is not yet
    counted; error: None, or why a record could not be written; next: index of the
    counter to write; run, trial, tries, previous, failed: see /ota/current.
    """

    def __init__(self, root):
        self.root = root
        self.error = None

    def state(self):
        """Return the mark of this boot so far, or None."""
        words = read(self.root + _MARK, 2)
        return words[1] if words and words[0] == str(self.count) else None

    def mark(self, state):
        """Record how this boot went. Raises OSError."""
        if self.state() != state:
            write(self.root + _MARK, (self.count, state))


def folder_of(slot):
    """Return the folder that holds app and lib of a version; "" is the root."""
    return "" if slot == BASE else "/ota/" + slot


def write(path, words):
    """Write a record durably. Raises OSError."""
    text = " ".join([str(word) for word in words])
    with open(path, "w") as file:
        file.write("%s %08x\n" % (text, crc32(text.encode()) & 0xFFFFFFFF))
        file.flush()
        # littlefs is durable at close; an operating system needs fsync().
        if hasattr(os, "fsync"):
            os.fsync(file.fileno())


def read(path, count):
    """Return the `count` words of a record, or None if it is missing or torn."""
    try:
        with open(path) as file:
            text = file.read(200)
    except (OSError, ValueError):
        return None
    words = text.split()
    if len(words) != count + 1 or not text.endswith("\n"):
        return None
    body = " ".join(words[:-1])
    return words[:-1] if words[-1] == "%08x" % (crc32(body.encode()) & 0xFFFFFFFF) else None
