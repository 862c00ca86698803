"""Builds the application's parts from the settings and runs them in one loop."""

import os
import sys
import time

from app import VERSION
from app.clock import Clock, system_clock
from app.commands import Commands
from app.health import CrashReport, Log, Status
from app.identity import hardware_id, open_identity
from app.sensors import LoopTimer, System
from app.settings import SettingsError, load
from app.telemetry import Telemetry
from app.wifi import Wifi
from umqtt_robust import Client, Will
from umqtt_robust.errors import StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.store import MemoryStore

# The loop looks after Wi-Fi and waiting replies at least this often, whatever the interval of the readings.
_LONGEST_WAIT_MS = 1000
_WIFI_POLL_MS = 100
_STATE_FOLDER = "/state"


class Application:
    """The loop. Each part does a little in its step() and never waits; all waiting is in run()."""

    def __init__(self, client, clock, loop_timer, wifi, telemetry, commands, status, crash_report, sleep_ms):
        self._client = client
        self._clock = clock
        self._loop_timer = loop_timer
        self._wifi = wifi
        self._telemetry = telemetry
        self._commands = commands
        self._status = status
        self._crash_report = crash_report
        self._sleep_ms = sleep_ms

    def run(self):
        """For ever. What is raised here is a bug of this program, never the state of the network."""
        while True:
            wait_ms = self.step()
            if self._wifi.connected or self._client.connected:
                self._client.poll(wait_ms)
            else:
                # Attempts without a network would only lengthen the client's pauses between them.
                self._sleep_ms(min(wait_ms, _WIFI_POLL_MS))

    def step(self):
        """One pass. Returns the milliseconds until the next one is due."""
        self._loop_timer.start()
        self._wifi.step(self._clock.uptime_ms())
        self._status.step(self._client)
        self._crash_report.step(self._client)
        self._commands.step()
        wait_ms = self._telemetry.step()
        self._loop_timer.stop()
        return _LONGEST_WAIT_MS if wait_ms is None else min(wait_ms, _LONGEST_WAIT_MS)


def build(folder="/"):
    """The Application of the settings in folder. Raises SettingsError, naming the key."""
    settings, secrets = load(folder)
    clock = Clock(time.ticks_ms, time.ticks_diff, system_clock(time, sys.platform))
    # Durable before anything is read, sent or retried.
    identity = open_identity(settings["device_id"] or _hardware_id(), _state_folder(folder))
    status = Status(identity, VERSION)
    client, store_error = _client(settings, secrets, identity, status, _state_folder(folder))
    log = Log(client, identity)
    if identity.counter_error:
        log.report("warning", identity.counter_error)
    if store_error:
        log.report("error", store_error)
    loop_timer = LoopTimer(clock)
    telemetry = Telemetry(client, identity, clock, (System(clock, loop_timer),), settings["interval_ms"], log.report)
    commands = Commands(client, identity, clock, telemetry)
    command_topic = identity.topic("cmd")
    client.on(command_topic, commands.handle)
    client.subscribe(command_topic, qos=1)
    wifi = Wifi(_station() if settings["wifi"] else None, settings["wifi"], secrets["wifi"])
    return Application(client, clock, loop_timer, wifi, telemetry, commands, status, CrashReport(log), time.sleep_ms)


def _client(settings, secrets, identity, status, state_folder):
    # (client, None), or with a store in RAM and why: a board whose flash cannot be read must still be reachable.
    options = {
        "keep_alive": settings["keep_alive"],
        "clean_session": False,
        "will": Will(status.topic, status.payload(False, "connection lost"), qos=1, retain=True),
    }
    if "username" in secrets["mqtt"]:
        options.update(secrets["mqtt"])
    name, brokers, slots = identity.device_id.encode(), tuple(settings["brokers"]), settings["outbox"]
    # A small file needs no block of its own up to this size, by the program size of the flash.
    store = FlashStore(state_folder + "/mqtt", slots, chunk=504 if sys.platform == "rp2" else 120)
    try:
        return Client(name, brokers, store=store, **options), None
    except StoreError as error:
        return Client(name, brokers, store=MemoryStore(slots), **options), "readings are not kept in flash: %s" % error


def _hardware_id():
    import machine

    if not hasattr(machine, "unique_id"):
        raise SettingsError("settings.json", "device_id", "must be given: this board has no unique_id()")
    return hardware_id(machine.unique_id())


def _station():
    """The Wi-Fi station. Raises SettingsError on a board that has none."""
    try:
        import network
    except ImportError:
        raise SettingsError("settings.json", "wifi", "must be empty: this board has no Wi-Fi")
    return network.WLAN(network.STA_IF)


def _state_folder(folder):
    path = folder.rstrip("/") + _STATE_FOLDER
    try:
        os.mkdir(path)
    except OSError:
        # It exists; if it could not be made, writing the counter fails next and says so.
        pass
    return path
