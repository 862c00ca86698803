"""Chooses the version of the application to run from the records of the boots before, and writes them (startup.py).

Needed at the start and seldom later, and unloaded in between. It is installed over the cable only, like startup.py. The
functions below take the Startup as `boots`.
"""

import os
import sys

import startup

_POINTER = "/ota/current"
_COUNTERS = ("/state/boot-a", "/state/boot-b")
_FROZEN = ".frozen"
# Where app/sleep.py keeps the state of a board without memory that survives a reset.
_WAKE = "/state/wake"


def start(counts=True):
    """Choose the version to run. counts: count this boot too, as main.py does once; startup.now is its Startup then.

    Returns the Startup.
    """
    boots = read_boots("", cause())
    if counts:
        startup.now = boots
        begin(boots)
    select(boots.folder)
    sys.modules.pop("boot_choice", None)  # hardly needed again, and heap is scarce
    return boots


def read_boots(root="", cause=startup.UNKNOWN):
    """Return a Startup made from the records. root: see there; cause: machine.reset_cause()."""
    boots = startup.Startup(root)
    # An rp2 ends its sleep with a reset; a power cut or the watchdog during the sleep leaves no file.
    boots.woke = (
        cause == _constant("DEEPSLEEP_RESET") or cause == _constant("WDT_RESET") and _exists(boots.root + _WAKE)
    )
    boots.run, boots.trial, boots.tries, boots.previous, boots.failed = _pointer(boots.root)
    boots.count, boots.failures, boots.next = _counter(boots.root)
    state = boots.state()
    if not boots.woke and boots.count:
        if state == startup.RETRY:
            boots.failures = startup.MOST_FAILURES - 1
        elif state == startup.CRASHED or (
            cause == _constant("WDT_RESET")
            if state == startup.CONFIRMED
            else state is None and cause != _constant("PWRON_RESET")
        ):
            boots.failures += 1
        elif state:
            boots.failures = 0
    _choose(boots, boots.trial != startup.NONE and boots.tries > 0)
    return boots


def _choose(boots, on_trial):
    boots.on_trial = on_trial
    boots.safe = boots.failures >= startup.MOST_FAILURES and not on_trial
    boots.slot = boots.trial if on_trial else startup.BASE if boots.safe else boots.run
    boots.folder = startup.folder_of(boots.slot)


def begin(boots):
    """Count this boot and, on trial, use up one of its tries. Call it before any code of the application runs."""
    if boots.trial != startup.NONE:
        try:
            if boots.on_trial:
                _point(boots, boots.run, boots.trial, boots.tries - 1, boots.previous, startup.NONE)
            else:
                # All its tries are used up, and none was confirmed.
                give_up(boots)
        except OSError as error:
            # A trial whose tries cannot be counted could go on for ever.
            _choose(boots, False)
            boots.error = "%s not written: %r" % (_POINTER, error)
    if not boots.woke:
        count_boot(boots)


def count_boot(boots):
    """Increment the boot count in flash. A failed write does not stop the board; `error` then says why."""
    boots.woke = False
    boots.count += 1
    try:
        _make_folder(boots.root + "/state")
        startup.write(boots.root + _COUNTERS[boots.next], (boots.count, boots.failures))
    except OSError as error:
        boots.error = "boot counter not written: %r" % error


def adopt(boots):
    """Run the version on trial from now on. Raises OSError."""
    if boots.slot == boots.previous:
        _point(boots, boots.slot, startup.NONE, 0, startup.NONE, boots.run)
    else:
        _point(boots, boots.slot, startup.NONE, 0, boots.run, startup.NONE)
    boots.on_trial = False


def try_version(boots, slot):
    """Run `slot` on trial at the next boot. Its files must be durable. Raises OSError."""
    _point(boots, boots.run, slot, 1, boots.previous, startup.NONE)


def overwrite(boots, slot):
    """Forget `slot` as the previous version, before its files are overwritten. Raises OSError."""
    if boots.previous == slot:
        _point(boots, boots.run, boots.trial, boots.tries, startup.NONE, boots.failed)


def run_base(boots):
    """Run the base version from the next boot on, since the slots will be overwritten. Raises OSError."""
    _point(boots, startup.BASE, startup.NONE, 0, startup.NONE, boots.failed)


def give_up(boots):
    """Give up the version on trial: from the next boot on, the version before it runs. Raises OSError."""
    _point(boots, boots.run, startup.NONE, 0, boots.previous, boots.trial)


def _point(boots, run, trial, tries, previous, failed):
    path = boots.root + _POINTER
    _make_folder(boots.root + "/ota")
    startup.write(path + ".new", (run, trial, tries, previous, failed))
    os.rename(path + ".new", path)
    boots.run, boots.trial, boots.tries, boots.previous, boots.failed = run, trial, tries, previous, failed


def select(folder):
    """Put the folders of a version first on sys.path. folder: as returned by startup.folder_of().

    Deployed files come before those frozen into the image, so that an update of the library takes effect.
    """
    path = [entry for entry in sys.path if not entry.startswith("/ota/")]
    if _FROZEN in path and "/lib" in path:
        path.remove("/lib")
        path.insert(path.index(_FROZEN), "/lib")
    if folder:
        path[:0] = [folder, folder + "/lib"]
    sys.path[:] = path


def cause():
    """Return machine.reset_cause(), or -1 on a port that reports none."""
    try:
        import machine

        return machine.reset_cause()
    except (ImportError, AttributeError):
        return startup.UNKNOWN


def _make_folder(path):
    try:
        os.mkdir(path)
    except OSError:
        pass  # it exists; if it could not be made, the next write into it fails


def _exists(path):
    try:
        os.stat(path)
        return True
    except OSError:
        return False


def _constant(name):
    try:
        import machine
    except ImportError:
        return None
    return getattr(machine, name, None)


def _pointer(root):
    # FAT cannot rename over a file: a power cut in between leaves only the new file.
    for suffix in ("", ".new"):
        words = startup.read(root + _POINTER + suffix, 5)
        if words and words[2].isdigit():
            return words[0], words[1], int(words[2]), words[3], words[4]
    return startup.BASE, startup.NONE, 0, startup.NONE, startup.NONE


def _counter(root):
    # Returns boots, failures in a row, and the index of the file to write next.
    best = (0, 0, 0)
    for i in (0, 1):
        words = startup.read(root + _COUNTERS[i], 2)
        if words and int(words[0]) > best[0]:
            best = int(words[0]), int(words[1]), 1 - i
    return best
