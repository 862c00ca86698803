"""Boots are counted and never forgotten; three failed ones lead to safe mode; a version on trial is started once."""

import os
import sys

import boot_choice
from startup import BASE, CONFIRMED, CRASHED, INTERRUPTED, NONE, RETRY, STEADY
from umqtt_testkit.portable import Rng, equal, new_path

_POWER_ON, _RESET, _WATCHDOG = 1, 2, 3


class _Machine:
    PWRON_RESET, HARD_RESET, WDT_RESET, DEEPSLEEP_RESET, SOFT_RESET = 1, 2, 3, 4, 5


def _root():
    sys.modules["machine"] = _Machine
    path = new_path("startup")
    os.mkdir(path)
    return path


def _boot(root, cause=_WATCHDOG, ends=None):
    boots = boot_choice.read_boots(root, cause)
    boot_choice.begin(boots)
    if ends == CONFIRMED:
        if boots.on_trial:
            boot_choice.adopt(boots)
        boots.mark(CONFIRMED)
    elif ends:
        boots.mark(ends)
    return boots


def test_the_counter_is_raised_once_a_boot():
    root = _root()
    equal([_boot(root).count for _ in range(5)], [1, 2, 3, 4, 5])


def test_a_torn_write_of_the_counter_costs_one_count_and_no_more():
    """Whatever a power cut leaves of the file being written, the other file still holds the previous count."""
    rng = Rng(20260101)
    for _ in range(20):
        root = _root()
        boots = rng.between(1, 6)
        for _ in range(boots):
            _boot(root)
        # The next write damages the older file.
        with open(root + ("/state/boot-a" if boots % 2 == 0 else "/state/boot-b"), "wb") as file:
            file.write(rng.bytes(rng.below(12)))
        equal(_boot(root).count, boots + 1)
        equal(_boot(root).count, boots + 2)


def test_a_flash_that_refuses_writes_still_boots_and_says_so():
    boots = _boot("/dev/null/either")
    equal(boots.count, 1)
    assert "boot counter not written" in boots.error


def test_three_boots_that_the_watchdog_ended_lead_to_safe_mode():
    root = _root()
    equal([_boot(root).safe for _ in range(5)], [False, False, False, True, True])


def test_three_crashes_lead_to_safe_mode_whatever_restarts_the_board():
    root = _root()
    equal([_boot(root, _POWER_ON, CRASHED).safe for _ in range(4)], [False, False, False, True])


def test_power_cuts_and_a_person_at_the_console_are_no_failures():
    for cause, ends in ((_POWER_ON, None), (_WATCHDOG, INTERRUPTED), (_RESET, CONFIRMED), (_POWER_ON, CONFIRMED)):
        root = _root()
        equal([_boot(root, cause, ends).safe for _ in range(6)], [False] * 6)


def test_a_power_cut_between_failures_forgives_nothing():
    root = _root()
    _boot(root)
    _boot(root)
    _boot(root, _POWER_ON)
    equal(_boot(root).failures, 2)
    equal(_boot(root).safe, True)


def test_three_boots_that_failed_after_they_were_confirmed_lead_to_safe_mode_unless_hours_later():
    """Planted: a boot that was once confirmed never counts as failed."""
    for cause, ends in ((_WATCHDOG, None), (_POWER_ON, CRASHED)):
        root = _root()
        failures = []
        for _ in range(4):
            boots = _boot(root, cause, CONFIRMED)
            failures.append((boots.failures, boots.safe))
            if ends:
                boots.mark(ends)
        equal(failures, [(0, False), (1, False), (2, False), (3, True)])
    root = _root()
    equal([_boot(root, _WATCHDOG, STEADY).failures for _ in range(4)], [0] * 4)


def test_one_healthy_boot_forgives_all():
    for ends, cause in ((CONFIRMED, _RESET), (STEADY, _WATCHDOG)):
        root = _root()
        _boot(root)
        _boot(root)
        _boot(root, ends=ends)
        causes = (cause, _WATCHDOG, _WATCHDOG, _WATCHDOG)
        equal([_boot(root, each).safe for each in causes], [False, False, False, True])


def test_safe_mode_is_left_for_one_boot_and_entered_again_when_that_fails():
    root = _root()
    for _ in range(3):
        _boot(root)
    equal(_boot(root, ends=RETRY).safe, True)
    equal(_boot(root).safe, False)
    equal(_boot(root).safe, True)


def test_a_wake_from_deep_sleep_is_not_counted_unless_asked_for():
    root = _root()
    _boot(root, ends=CONFIRMED)
    for _ in range(6):
        wake = _boot(root, _Machine.DEEPSLEEP_RESET)
        equal((wake.count, wake.woke, wake.safe), (1, True, False))
    boot_choice.count_boot(wake)
    equal((wake.count, wake.woke), (2, False))
    equal(_boot(root).count, 3)


def test_a_version_on_trial_is_started_once_and_then_the_one_before_runs():
    root = _root()
    boot_choice.try_version(_boot(root, ends=CONFIRMED), "a")
    trial = _boot(root)
    equal((trial.slot, trial.folder, trial.on_trial), ("a", "/ota/a", True))
    for _ in range(2):
        after = _boot(root, _POWER_ON)
        equal((after.slot, after.folder, after.on_trial, after.failed), (BASE, "", False, "a"))


def test_a_version_that_was_confirmed_stays():
    root = _root()
    boot_choice.try_version(_boot(root), "a")
    _boot(root, ends=CONFIRMED)
    after = _boot(root)
    equal((after.slot, after.on_trial, after.previous, after.failed), ("a", False, BASE, NONE))
    boot_choice.try_version(after, "b")
    _boot(root, ends=CONFIRMED)
    after = _boot(root, _POWER_ON)
    equal((after.slot, after.previous), ("b", "a"))


def test_safe_mode_runs_the_base_version():
    root = _root()
    boot_choice.try_version(_boot(root), "b")
    _boot(root, ends=CONFIRMED).mark(STEADY)
    equal([_boot(root).slot for _ in range(4)], ["b", "b", "b", BASE])
    # A version received over the air is tried all the same: it may fix the failure.
    boot_choice.try_version(boot_choice.read_boots(root, _WATCHDOG), "a")
    trial = _boot(root)
    equal((trial.slot, trial.safe), ("a", False))


def test_a_trial_that_cannot_be_counted_is_not_begun():
    root = _root()
    boot_choice.try_version(_boot(root), "a")
    # Nothing can be written over a folder.
    os.mkdir(root + "/ota/current.new")
    boots = _boot(root)
    equal((boots.slot, boots.on_trial), (BASE, False))
    assert "/ota/current not written" in boots.error


def test_a_torn_pointer_means_the_base_version_or_the_one_that_was_meant():
    rng = Rng(7)
    for _ in range(30):
        root = _root()
        boot_choice.try_version(_boot(root), "a")
        with open(root + "/ota/current", "rb") as file:
            data = file.read()
        with open(root + "/ota/current", "wb") as file:
            file.write(data[: rng.below(len(data))] + rng.bytes(rng.below(5)))
        equal(_boot(root).slot, BASE)
        with open(root + "/ota/current.new", "wb") as file:
            file.write(data)
        os.remove(root + "/ota/current")
        equal(_boot(root).slot, "a")


def test_a_version_comes_before_everything_on_the_path_and_the_library_before_what_is_frozen():
    before = sys.path[:]
    try:
        sys.path[:] = ["", ".frozen", "/lib"]
        boot_choice.select("")
        equal(sys.path, ["", "/lib", ".frozen"])
        boot_choice.select("/ota/b")
        boot_choice.select("/ota/a")
        equal(sys.path, ["/ota/a", "/ota/a/lib", "", "/lib", ".frozen"])
        boot_choice.select("")
        equal(sys.path, ["", "/lib", ".frozen"])
    finally:
        sys.path[:] = before
