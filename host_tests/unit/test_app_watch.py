"""Rules for feeding the watchdog, for confirming a boot, and for accepting a version on trial."""

import os

import _app_fakes as fakes
import boot_choice
import startup
from app.health import CONFIRM_MS, RETRY_MS, STEADY_MS, TRIAL_MS, Health
from app.status import Status
from startup import CONFIRMED, RETRY, STEADY
from umqtt_testkit.portable import equal, new_path

_POWER_ON, _WATCHDOG = 1, 3


class Dog:
    def __init__(self):
        self.fed = 0

    def feed(self):
        self.fed += 1


class Telemetry:
    interval_ms = 1000
    paused = False
    seq = first_id = 0


class World:
    """A board. failures: earlier boots that the watchdog ended. trial: a version on trial boots."""

    def __init__(self, failures=0, trial=False):
        self.root = new_path("watch")
        os.mkdir(self.root)
        for _ in range(failures):
            boot_choice.begin(boot_choice.read_boots(self.root, _WATCHDOG))
        if trial:
            boot_choice.try_version(boot_choice.read_boots(self.root, _WATCHDOG), "a")
        self.boots = boot_choice.read_boots(self.root, _WATCHDOG)
        boot_choice.begin(self.boots)
        self.ticks, clock = fakes.clock()
        self.client = fakes.Client()
        self.telemetry = None if self.boots.safe else Telemetry()
        self.restarts = 0
        self.status = Status(fakes.identity(), "1", "boot", {"trial": True})
        self.health = Health(self.client, clock, self.telemetry, self.boots, self._restart, self.status)
        self.dog = startup.watchdog = Dog()

    def _restart(self):
        self.restarts += 1

    def run(self, ms, readings=True, passes=100):
        for _ in range(ms // passes):
            self.ticks.advance(passes)
            if readings and self.telemetry:
                self.telemetry.seq += 1
            self.health.step()

    def deliver(self):
        """Deliver the first reading to the broker."""
        self.telemetry.first_id = self.client.publish(b"t", b"r", 1)
        self.client.acknowledge()
        self.client.on_acknowledged(self.telemetry.first_id)


def test_a_loop_that_takes_readings_feeds_the_watchdog_in_every_pass():
    world = World()
    world.run(10_000)
    equal(world.dog.fed, 100)


def test_a_loop_that_goes_round_without_taking_readings_starves_it():
    world = World()
    world.run(10_000)
    world.run(60_000, readings=False)
    fed = world.dog.fed
    world.run(60_000, readings=False)
    equal(world.dog.fed, fed)
    assert fed < 500, fed
    world.run(1000)
    assert world.dog.fed > fed


def test_paused_readings_are_on_schedule():
    world = World()
    world.telemetry.paused = True
    world.run(120_000, readings=False)
    equal(world.dog.fed, 1200)


def test_a_long_interval_is_no_illness():
    world = World()
    world.telemetry.interval_ms = 600_000
    world.run(900_000, readings=False, passes=1000)
    equal(world.dog.fed, 900)


def test_a_minute_of_healthy_loop_confirms_a_boot_that_finds_no_network():
    world = World(failures=2)
    world.run(CONFIRM_MS - 1000)
    equal(world.boots.state(), None)
    world.run(1100)
    equal((world.boots.state(), world.health.confirmed), (CONFIRMED, True))
    equal(boot_choice.read_boots(world.root, _POWER_ON).failures, 0)
    # A failure hours later is independent of the earlier boots.
    world.run(STEADY_MS, passes=1000)
    equal(world.boots.state(), STEADY)


def test_a_minute_that_was_not_healthy_throughout_confirms_nothing():
    world = World()
    world.telemetry.interval_ms = 100
    for _ in range(4):
        world.run(20_000)
        world.run(35_000, readings=False)
    equal(world.boots.state(), None)


def test_the_first_reading_that_the_broker_has_confirms_a_boot_at_once():
    world = World()
    world.run(1000)
    world.deliver()
    world.run(100)
    equal(world.boots.state(), CONFIRMED)


def test_a_reading_that_the_outbox_dropped_confirms_nothing():
    world = World(trial=True)
    world.telemetry.first_id = world.client.publish(b"t", b"r", 1)
    world.client.pending = 0
    world.run(10_000)
    equal((world.boots.state(), world.boots.on_trial), (None, True))


def test_a_version_on_trial_needs_a_delivered_reading_and_a_minute_of_health():
    """Planted: one of the two is enough."""
    world = World(trial=True)
    world.deliver()
    world.run(CONFIRM_MS - 1000)
    equal((world.boots.on_trial, world.boots.state()), (True, None))
    world.run(1100)
    equal((world.boots.on_trial, world.boots.run), (False, "a"))
    world = World(trial=True)
    world.run(2 * CONFIRM_MS)
    equal((world.boots.on_trial, world.boots.state()), (True, None))
    world.deliver()
    world.run(100)
    equal((world.boots.on_trial, world.boots.run, world.restarts), (False, "a", 0))
    assert "trial" not in world.status.extra


def test_a_version_on_trial_that_delivers_nothing_is_given_up():
    world = World(trial=True)
    world.run(TRIAL_MS + 100, passes=1000)
    equal(world.restarts > 0, True)
    after = boot_choice.read_boots(world.root, _WATCHDOG)
    equal((after.slot, after.failed), ("base", "a"))


def test_safe_mode_feeds_the_watchdog_and_tries_again_after_an_hour():
    world = World(failures=3)
    equal((world.boots.safe, world.telemetry), (True, None))
    world.run(RETRY_MS - 10_000, passes=1000)
    equal((world.dog.fed, world.restarts), (3590, 0))
    world.run(11_000, passes=1000)
    assert world.restarts
    equal(world.boots.state(), RETRY)
    equal(boot_choice.read_boots(world.root, _WATCHDOG).safe, False)


def test_a_flash_that_takes_no_mark_does_not_end_the_loop():
    world = World()
    world.boots.root = "/dev/null"
    world.run(1000)
    world.deliver()
    world.run(1000)
    equal(world.health.confirmed, False)
    assert "not confirmed in flash" in world.health.error
