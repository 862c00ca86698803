"""Which version of the application runs, and how many starts in a row have failed.

It lies beside boot.py, is written by the cable alone and imports nothing of a version, so that it works whatever came
over the air. Three records, each one line of words and their CRC-32 in hex:

    /ota/current                  RUN TRIAL TRIES PREVIOUS FAILED: the version that runs, the one on trial and how
                                  often it may still be started, the one before, and the last that failed its trial or
                                  was rolled back from; each is base, a, b or -
    /state/boot-a, /state/boot-b  COUNT FAILURES: boots, and how many before this one failed in a row; written in turn
    /state/mark                   COUNT STATE: how boot COUNT went, CONFIRMED, STEADY, CRASHED, INTERRUPTED or RETRY

A boot costs two small writes: its count, before anything else runs, and its mark; a third one when it has been healthy
for an hour, STEADY. Before that it failed when it crashed or the watchdog ended it, and when it was not even confirmed
also when a reset did; a power cut and whoever interrupts it at the console are no failure. After MOST_FAILURES of them
the next boot is in safe mode, and runs the base version. RETRY leaves safe mode for one boot: should that fail, the
next one is in safe mode again.

A version that failed its trial, or was left by a trial of the one before (a rollback), is never gone back to.

Every write leaves the record whole at any moment of a power cut: the pointer is a temporary file and a rename, the
count goes to the older of two files, and a torn mark says no more than no mark.
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
# machine.reset_cause() of the ports that have no constant for it is never equal to this.
_UNKNOWN = -1

# The Startup of this boot, once begin() has run.
now = None
# machine.WDT once the application has started it: it cannot be stopped, so the prompt and a crash have to know it.
watchdog = None


class Startup:
    """root: where the board's files lie, "" on a board. cause: machine.reset_cause().

    slot: the version that runs; folder: where it lies, "" for base; on_trial: bool; count: of boots; failures: boots
    before this one that failed in a row; safe: bool; woke: it is a wake from deep sleep, and not counted yet; error:
    None, or why the count is not durable.
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
        """Count this boot, and the trial that it is. Nothing of the application may have run before."""
        if self.trial != NONE:
            try:
                if self.on_trial:
                    self._point(self.run, self.trial, self.tries - 1, self.previous, NONE)
                else:
                    # It was started as often as it may be, and not confirmed.
                    self.give_up()
            except OSError as error:
                # A trial that is not counted could go on for ever.
                self._choose(False)
                self.error = "%s not written: %r" % (_POINTER, error)
        if not self.woke:
            self.count_boot()

    def count_boot(self):
        """Raise the count, durably. It does not stop the board when it cannot be written: see error."""
        self.woke = False
        self.count += 1
        try:
            _make_folder(self._root + "/state")
            _write(self._root + _COUNTERS[self._next], (self.count, self.failures))
        except OSError as error:
            self.error = "boot counter not written: %r" % error

    def state(self):
        """The mark of this boot so far, or None."""
        words = _read(self._root + _MARK, 2)
        return words[1] if words and words[0] == str(self.count) else None

    def mark(self, state):
        """How this boot went. Raises OSError."""
        if self.state() != state:
            _write(self._root + _MARK, (self.count, state))

    def confirm(self):
        """This boot is healthy, and with it the version on trial. Raises OSError."""
        if self.on_trial:
            if self.slot == self.previous:
                self._point(self.slot, NONE, 0, NONE, self.run)
            else:
                self._point(self.slot, NONE, 0, self.run, NONE)
            self.on_trial = False
        self.mark(CONFIRMED)

    def try_version(self, slot, tries=1):
        """From the next boot on, `slot` runs on trial. Its files must be durable. Raises OSError."""
        self._point(self.run, slot, tries, self.previous, NONE)

    def overwrite(self, slot):
        """The files of this slot are about to be others: it is not the version before any more. Raises OSError."""
        if self.previous == slot:
            self._point(self.run, self.trial, self.tries, NONE, self.failed)

    def give_up(self):
        """The version on trial has failed: from the next boot on the one before runs. Raises OSError."""
        self._point(self.run, NONE, 0, self.previous, self.trial)

    def _point(self, run, trial, tries, previous, failed):
        path = self._root + _POINTER
        _make_folder(self._root + "/ota")
        _write(path + ".new", (run, trial, tries, previous, failed))
        os.rename(path + ".new", path)
        self.run, self.trial, self.tries, self.previous, self.failed = run, trial, tries, previous, failed

    def _pointer(self):
        # FAT has no rename that replaces: a cut in the middle of it leaves the new file alone.
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
    """The folder that holds app and lib of a version; "" is the root."""
    return "" if slot == BASE else "/ota/" + slot


def select(folder):
    """Put a version before everything else on sys.path.

    What was deployed comes before what is frozen into the image, so that an update of the library counts.
    """
    path = [entry for entry in sys.path if not entry.startswith("/ota/")]
    if _FROZEN in path and "/lib" in path:
        path.remove("/lib")
        path.insert(path.index(_FROZEN), "/lib")
    if folder:
        path[:0] = [folder, folder + "/lib"]
    sys.path[:] = path


def begin():
    """For main.py: this boot is counted and its version chosen. Returns the Startup."""
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
        pass  # it is there; if it could not be made, what is written into it fails next


def _write(path, words):
    text = " ".join([str(word) for word in words])
    with open(path, "w") as file:
        file.write("%s %08x\n" % (text, crc32(text.encode()) & 0xFFFFFFFF))
        file.flush()
        # littlefs is durable at close; an operating system needs to be told.
        if hasattr(os, "fsync"):
            os.fsync(file.fileno())


def _read(path, count):
    # The words of a record, `count` of them, or None when there is none or it is torn.
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
