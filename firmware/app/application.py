"""Builds the application's parts from the settings and runs them in one loop."""

import os
import sys
import time

import startup

from app import VERSION
from app.actions import Actions
from app.board import Board
from app.clock import Clock, system_clock
from app.commands import Commands
from app.crash import CrashReport
from app.health import Health, reset_cause, start_watchdog
from app.identity import Identity, hardware_id
from app.ledger import Ledger
from app.log import Log
from app.restart import Restart, hardware_reset
from app.settings import SettingsError
from app.settings_files import load
from app.status import Status
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

    def __init__(self, board, sleep_ms):
        self.board = board
        self._sleep_ms = sleep_ms

    def run(self):
        """For ever. What is raised here is a bug of this program, never the state of the network."""
        board = self.board
        while True:
            wait_ms = self.step()
            if board.wifi.connected or board.client.connected:
                board.client.poll(wait_ms)
            else:
                # Attempts without a network would only lengthen the client's pauses between them.
                self._sleep_ms(min(wait_ms, _WIFI_POLL_MS))

    def step(self):
        """One pass. Returns the milliseconds until the next one is due."""
        board = self.board
        if board.loop_timer:
            board.loop_timer.start()
        board.wifi.step(board.clock.uptime_ms())
        board.status.step(board.client)
        board.crash_report.step(board.client)
        board.actions.step()
        board.commands.step()
        wait_ms = _LONGEST_WAIT_MS
        for part in (board.update, board.telemetry, board.sleeper):
            if part:
                wanted = part.step()
                if wanted is not None and wanted < wait_ms:
                    wait_ms = wanted
        board.restart.step()
        board.health.step()
        if board.loop_timer:
            board.loop_timer.stop()
        return wait_ms


def build(folder="/"):
    """The Application of the settings in folder. Raises SettingsError, naming the key."""
    boots = startup.now or startup.begin()
    settings, secrets = load(folder)
    if settings["watchdog_ms"]:
        start_watchdog(settings["watchdog_ms"])
    board = Board(folder.rstrip("/"), settings, boots, VERSION)
    wake = _wake(boots)
    # Durable before anything is read, sent or retried.
    device_id = settings["device_id"] or _hardware_id()
    board.identity = identity = Identity(device_id, boots.count, wake and wake.random_bits)
    board.clock = clock = Clock(time.ticks_ms, time.ticks_diff, system_clock(time, sys.platform))
    extra = {"slot": boots.slot, "cause": reset_cause()}
    if boots.on_trial:
        extra["trial"] = True
    if boots.failed != startup.NONE:
        extra["rolled_back"] = boots.failed
    board.status = Status(identity, VERSION, "safe mode" if boots.safe else "boot", extra)
    state_folder = _state_folder(folder)
    board.client = client = _client(settings, secrets, identity, board.status, state_folder)
    board.log = log = Log(client, identity)
    for level, text in (("warning", boots.error), ("error", client.store_error)):
        if text:
            log.report(level, text)
    board.crash_report = CrashReport(log.report)
    board.restart = Restart(client, clock, board.status, boots, hardware_reset)
    if not boots.safe:
        _add_telemetry(board, wake)
    board.actions = Actions(board)
    command_topic = identity.topic("cmd")
    board.commands = Commands(client, identity.topic("reply"), Ledger(state_folder + "/commands"), board.actions)
    client.on(command_topic, board.commands.handle)
    client.subscribe(command_topic, qos=2)
    board.health = Health(client, clock, board.telemetry, boots, board.restart)
    board.wifi = Wifi(_station() if settings["wifi"] else None, settings["wifi"], secrets["wifi"])
    return Application(board, time.sleep_ms)


def _add_telemetry(board, wake):
    # What safe mode does without.
    from app.sensors import LoopTimer, System
    from app.telemetry import Telemetry

    board.loop_timer = LoopTimer(board.clock)
    sensors = (System(board.clock, board.loop_timer),)
    board.telemetry = Telemetry(
        board.client, board.identity, board.clock, sensors, board.settings["interval_ms"], board.log.report
    )
    if board.settings["sleep_s"]:
        board.sleep(wake)


def _wake(boots):
    # What the deep sleep before this start kept, or None: then this is a boot like any other.
    if not boots.woke:
        return None
    from app.sleep import woken

    wake = woken(boots.count)
    if wake is None:
        boots.count_boot()
    return wake


def _client(settings, secrets, identity, status, state_folder):
    # With a store in RAM where the flash cannot be read: the board must still be reachable.
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
        client = Client(name, brokers, store=store, **options)
        client.store_error = None
    except StoreError as error:
        client = Client(name, brokers, store=MemoryStore(slots), **options)
        client.store_error = "readings are not kept in flash: %s" % error
    return client


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
        # It exists; if it could not be made, the store's first write fails and says so.
        pass
    return path
