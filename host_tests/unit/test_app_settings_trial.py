"""Settings changed over the air that reach no broker are taken back by themselves, wherever the power is cut."""

import os

import _app_fakes as fakes
import boot_choice
from app import act_set, settings_trial
from app.health import CONFIRM_MS, TRIAL_MS, Health
from app.settings import LIVE
from app.settings_files import change, load, save
from app.status import Status
from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import FULL, equal, new_path, raises

HEAP = "8M"
TIMEOUT_S = 900
CUTS = None if FULL else 30

OLD, NEW, NEWER = ["mqtt://old"], ["mqtt://new"], ["mqtt://newer"]
_POWER_ON = 1


class Telemetry:
    interval_ms = 1000
    paused = False
    seq = first_id = 0


class Boot:
    """A boot with the settings of the folder; `reached` are the brokers that answer."""

    def __init__(self, root, reached=()):
        self.folder = root
        self.boots = boots = boot_choice.read_boots(root, _POWER_ON)
        boot_choice.begin(boots)
        self.settings = load(root)[0]
        self.brokers = self.settings["brokers"]
        self.unreported = None
        self.client = fakes.Client()
        self.ticks, self.clock = fakes.clock()
        self.telemetry = Telemetry()
        self.restarts = 0
        status = Status(fakes.identity(), "1")
        self.health = Health(self.client, self.clock, self.telemetry, boots, self.restart, status)
        self.log = fakes.Log()
        self.trial = settings_trial.Trial(self) if on_trial(root) else None
        if self.brokers in reached:
            self.telemetry.first_id = self.client.publish(b"t", b"r", 1)
            self.client.acknowledge()
            self.client.on_acknowledged(self.telemetry.first_id)

    def restart(self):
        self.restarts += 1

    def run(self, ms=TRIAL_MS + 1000):
        for _ in range(ms // 1000):
            self.ticks.advance(1000)
            self.telemetry.seq += 1
            self.health.step()
            if self.trial:
                self.trial.step()
            if self.restarts:
                break
        return self


def on_trial(root):
    return bool(settings_trial.on_trial(root))


def fresh():
    root = new_path("trial")
    os.mkdir(root)
    save(root, "settings.json", {"brokers": OLD})
    return root


def test_brokers_that_are_not_reached_go_back_and_those_that_are_stay():
    """Planted: readings delivered in the boot that got the command confirm the settings; nothing is taken back."""
    for reached, brokers, restarts in (((), OLD, 1), ((OLD,), OLD, 1), ((NEW,), NEW, 0)):
        root = fresh()
        told = Boot(root, (OLD,))
        change(root, {"brokers": NEW})
        told.run(2 * CONFIRM_MS)
        equal((on_trial(root), told.restarts), (True, 0))
        boot = Boot(root, reached)
        equal(boot.brokers, NEW)
        boot.run(TRIAL_MS - 2000)
        equal((on_trial(root), boot.restarts), (NEW not in reached, 0))
        boot.run(4000)
        equal((load(root)[0]["brokers"], on_trial(root), boot.restarts), (brokers, False, restarts))
        equal(Boot(root, reached).run().restarts, 0)


def test_several_changes_go_back_to_the_settings_that_were_the_last_to_work():
    """Planted: the earlier settings are those before the last change."""
    root = fresh()
    change(root, {"brokers": NEW})
    change(root, {"brokers": NEWER})
    change(root, {"interval_ms": 500})
    Boot(root).run()
    equal((load(root)[0]["brokers"], load(root)[0]["interval_ms"]), (OLD, 60_000))


def test_a_change_during_a_trial_is_not_accepted_by_readings_that_the_settings_before_delivered():
    """Planted: the trial of this boot continues after a further change."""
    root = fresh()
    change(root, {"brokers": NEW})
    boot = Boot(root, (OLD, NEW))
    boot.settings = load(root)[0]
    equal(act_set.run(boot, {"key": "brokers", "value": NEWER})["applies"], "after reboot")
    boot.run(2 * CONFIRM_MS)
    equal(on_trial(root), True)
    Boot(root, (OLD, NEW)).run()
    equal(load(root)[0]["brokers"], OLD)


def test_what_counts_from_the_next_boot_on_is_on_trial_and_what_counts_at_once_is_not():
    """Planted: brokers alone are on trial, not the networks by which they are reached."""
    other = {"wifi": ["lab"], "hostname": "pump", "static_ip": ["10.0.0.9", "255.0.0.0", "10.0.0.1", "10.0.0.1"],
             "keep_alive": 30, "country": "DE", "outbox": 9, "interval_ms": 500, "log_level": "debug"}  # fmt: skip
    for key in other:
        root = fresh()
        change(root, {key: other[key]})
        equal(on_trial(root), key not in LIVE, key)
        Boot(root).run()
        equal(load(root)[0][key] == other[key], key in LIVE, key)


def test_what_cannot_even_start_goes_back_in_safe_mode():
    root = fresh()
    change(root, {"brokers": NEW})
    equal((settings_trial.give_back(root, 4), load(root)[0]["brokers"]), (True, OLD))
    equal(settings_trial.give_back(root, 5), False)


# The power cut at every flash operation


def _settle(root, reached):
    # Boots until nothing is on trial.
    for _ in range(4):
        boot = Boot(root, reached).run()
        if not boot.restarts and not on_trial(root):
            return load(root)[0]["brokers"]
    raise AssertionError("the settings stay on trial")


def _sweep(reached, expected, planted=None):
    def scenario(root, ledger):
        change(root, {"brokers": NEW})
        ledger["told"] = True
        before = settings_trial.give_back
        settings_trial.give_back = planted or before
        try:
            _settle(root, reached)
        finally:
            settings_trial.give_back = before

    def check(root, ledger):
        brokers = _settle(root, reached)
        assert brokers == expected or brokers == OLD and not ledger.get("told"), brokers

    with PowerCutFlash("esp32", 80) as flash:
        save(ROOT, "settings.json", {"brokers": OLD})
        return flash.sweep(scenario, check, most=CUTS, second_cuts=0 if CUTS else 1, seed=5)


def test_a_power_cut_at_any_flash_operation_leaves_settings_that_reach_a_broker():
    print(_sweep((NEW,), NEW))
    print(_sweep((OLD,), OLD))


def _over_too_early(folder, boot):
    """Planted mistake: the trial ends before the settings are restored."""
    with open(folder + "/settings.json.was") as file:
        text = file.read()
    os.remove(folder + "/settings.json.was")
    with open(folder + "/settings.json", "w") as file:
        file.write(text)
    return True


def test_the_sweep_finds_a_planted_mistake():
    raises(AssertionError, _sweep, (OLD,), OLD, _over_too_early)
