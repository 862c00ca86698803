"""Chooses the version of the application to run, and counts how many boots in a row have failed.

It lies beside boot.py, is installed over the cable only and imports nothing of a version, so it works whatever came
over the air. It keeps three records, each one line of words and their CRC-32 in hex:

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
import sys
from binascii import crc32

BASE = "base"
SLOTS = ("a", "b")
NONE = "-"
CONFIRMED, STEADY, CRASHED, INTERRUPTED, RETRY = "c", "s", "x", "i", "r"
MOST_FAILURES = 3

_POINTER = "/ota/current"
_COUNTERS = ("/state/boot-a", "/state/boot-b")
_MARK = "/state/mark"
_FROZEN = ".frozen"
# The reset cause on a port that reports none; equal to no constant of machine.
_UNKNOWN = -1

# The Startup of this boot, once begin() has run.
now = None
# machine.WDT once the application has started it; it cannot be stopped, so postmortem.py has to keep feeding it.
watchdog = None


class Startup:
    """The state of this boot. root: folder of the board's files, "" on a board; cause: machine.reset_cause().

    slot: the version that runs; folder: its folder, "" for base; on_trial: bool; count: number of boots; failures:
    failed boots in a row before this one; safe: bool, safe mode; woke: bool, a wake from deep sleep that is not yet
    counted; error: None, or why a record could not be written.
    """

    def __init__(self, root="", cause=_UNKNOWN):
        self._root = root
        self._cause = cause
        self.error = None
        self.woke = cause == _constant("DEEPSLEEP_RESET")
        self.run, self.trial, self.tries, self.previous, self.failed = self._pointer()
        self.count, self.failures, self._next = self._counter()
        state = self.state()
        if not self.woke and self.count:
            if state == RETRY:
                self.failures = MOST_FAILURES - 1
            elif state == CRASHED or (
                cause == _constant("WDT_RESET")
                if state == CONFIRMED
                else state is None and cause != _constant("PWRON_RESET")
            ):
                self.failures += 1
            elif state:
                self.failures = 0
        self._choose(self.trial != NONE and self.tries > 0)

    def _choose(self, on_trial):
        self.on_trial = on_trial
        self.safe = self.failures >= MOST_FAILURES and not on_trial
        self.slot = self.trial if on_trial else BASE if self.safe else self.run
        self.folder = folder_of(self.slot)

    def begin(self):
        """Count this boot and, on trial, use up one of its tries. Call it before any code of the application runs."""
        if self.trial != NONE:
            try:
                if self.on_trial:
                    self._point(self.run, self.trial, self.tries - 1, self.previous, NONE)
                else:
                    # All its tries are used up, and none was confirmed.
                    self.give_up()
            except OSError as error:
                # A trial whose tries cannot be counted could go on for ever.
                self._choose(False)
                self.error = "%s not written: %r" % (_POINTER, error)
        if not self.woke:
            self.count_boot()

    def count_boot(self):
        """Increment the boot count in flash. A failed write does not stop the board; `error` then says why."""
        self.woke = False
        self.count += 1
        try:
            _make_folder(self._root + "/state")
            _write(self._root + _COUNTERS[self._next], (self.count, self.failures))
        except OSError as error:
            self.error = "boot counter not written: %r" % error

    def state(self):
        """Return the mark of this boot so far, or None."""
        words = _read(self._root + _MARK, 2)
        return words[1] if words and words[0] == str(self.count) else None

    def mark(self, state):
        """Record how this boot went. Raises OSError."""
        if self.state() != state:
            _write(self._root + _MARK, (self.count, state))

    def confirm(self):
        """Mark this boot as healthy, and adopt the version on trial if there is one. Raises OSError."""
        if self.on_trial:
            if self.slot == self.previous:
                self._point(self.slot, NONE, 0, NONE, self.run)
            else:
                self._point(self.slot, NONE, 0, self.run, NONE)
            self.on_trial = False
        self.mark(CONFIRMED)

    def try_version(self, slot):
        """Run `slot` on trial at the next boot. Its files must be durable. Raises OSError."""
        self._point(self.run, slot, 1, self.previous, NONE)

    def overwrite(self, slot):
        """Forget `slot` as the previous version, before its files are overwritten. Raises OSError."""
        if self.previous == slot:
            self._point(self.run, self.trial, self.tries, NONE, self.failed)

    def give_up(self):
        """Give up the version on trial: from the next boot on, the version before it runs. Raises OSError."""
        self._point(self.run, NONE, 0, self.previous, self.trial)

    def _point(self, run, trial, tries, previous, failed):
        path = self._root + _POINTER
        _make_folder(self._root + "/ota")
        _write(path + ".new", (run, trial, tries, previous, failed))
        os.rename(path + ".new", path)
        self.run, self.trial, self.tries, self.previous, self.failed = run, trial, tries, previous, failed

    def _pointer(self):
        # FAT cannot rename over a file: a power cut in between leaves only the new file.
        for suffix in ("", ".new"):
            words = _read(self._root + _POINTER + suffix, 5)
            if words and words[2].isdigit():
                return words[0], words[1], int(words[2]), words[3], words[4]
        return BASE, NONE, 0, NONE, NONE

    def _counter(self):
        best = (0, 0, 0)
        for i in (0, 1):
            words = _read(self._root + _COUNTERS[i], 2)
            if words and int(words[0]) > best[0]:
                best = int(words[0]), int(words[1]), 1 - i
        return best


def folder_of(slot):
    """Return the folder that holds app and lib of a version; "" is the root."""
    return "" if slot == BASE else "/ota/" + slot


def select(folder):
    """Put the folders of a version first on sys.path. folder: as returned by folder_of().

    Deployed files come before those frozen into the image, so that an update of the library takes effect.
    """
    path = [entry for entry in sys.path if not entry.startswith("/ota/")]
    if _FROZEN in path and "/lib" in path:
        path.remove("/lib")
        path.insert(path.index(_FROZEN), "/lib")
    if folder:
        path[:0] = [folder, folder + "/lib"]
    sys.path[:] = path


def begin():
    """Count this boot and choose its version, for main.py. Returns the Startup."""
    global now
    now = Startup("", _cause())
    now.begin()
    select(now.folder)
    return now


def _cause():
    try:
        import machine

        return machine.reset_cause()
    except (ImportError, AttributeError):
        return _UNKNOWN


def _constant(name):
    try:
        import machine
    except ImportError:
        return None
    return getattr(machine, name, None)


def _make_folder(path):
    try:
        os.mkdir(path)
    except OSError:
        pass  # it exists; if it could not be made, the next write into it fails


def _write(path, words):
    text = " ".join([str(word) for word in words])
    with open(path, "w") as file:
        file.write("%s %08x\n" % (text, crc32(text.encode()) & 0xFFFFFFFF))
        file.flush()
        # littlefs is durable at close; an operating system needs fsync().
        if hasattr(os, "fsync"):
            os.fsync(file.fileno())


def _read(path, count):
    # Returns the `count` words of a record, or None if it is missing or torn.
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
