"""Makes the application's parts from the settings, and is forgotten afterwards: see application.build().

What is not configured is not imported. Nothing that stays may refer to this module: no function of it, no lambda.
"""

import os
import sys
import time

import startup

from app import VERSION
from app.board import Board
from app.clock import Clock, system_clock
from app.command_door import CommandDoor
from app.gaps import Gaps
from app.health import Health, reset_cause, start_watchdog
from app.identity import Identity, hardware_id
from app.log import Log
from app.restart import Restart, hardware_reset
from app.status import Status
from app.wifi import Wifi
from umqtt_robust import Client, Will
from umqtt_robust.errors import InvalidArgument, StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.policy import DROP_OLDEST
from umqtt_robust.store import MemoryStore

_STATE_FOLDER = "/state"
_NTP_HOST = "pool.ntp.org"


def assemble(folder, settings, secrets):
    """The Board of the settings (as settings_files.load() gives them) in folder, all its parts made.

    Raises SettingsError, naming the key.
    """
    boots = startup.now or startup.begin()
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
    client, store_error = _client(settings, secrets, identity, board.status, state_folder)
    board.client = client
    slots = settings["outbox"]
    # The last quarter of the outbox is for readings and replies.
    board.log = log = Log(client, identity, clock, settings["log_level"], slots * 3 // 4)
    board.gaps = Gaps(state_folder + "/gaps", identity.boot, log.report)
    client.on_dropped = board.gaps.on_dropped
    board.gaps.on_other = board.dropped
    for level, text in (("warning", boots.error), ("error", store_error)):
        if text:
            log.report(level, text)
    board.crash_report = _crash_report(state_folder, log.report)
    board.restart = Restart(client, clock, board.status, boots, hardware_reset)
    board.wifi = Wifi(_network() if settings["wifi"] else None, settings, secrets["wifi"], log.report)
    board.ntp = _ntp(board)
    if not boots.safe:
        _add_telemetry(board, wake)
    command_topic = identity.topic("cmd")
    commands = CommandDoor(board, state_folder + "/commands")
    board.commands = commands
    client.on(command_topic, commands.handle)
    client.subscribe(command_topic, qos=2)
    board.health = Health(client, clock, board.telemetry, boots, board.restart, board.status)
    return board


def _add_telemetry(board, wake):
    # What safe mode does without.
    from app.sensors import Sensors
    from app.sensors.system import LoopTimer, System
    from app.telemetry import Telemetry

    clock, settings, report = board.clock, board.settings, board.log.report
    board.loop_timer = LoopTimer(clock)
    board.sensors = sensors = Sensors(clock, report)
    sensors.add("system", System(clock, board.loop_timer, board.wifi))
    if sys.platform in ("esp32", "rp2"):
        sensors.configure({"module": "chip"})
    for entry in settings["sensors"]:
        sensors.configure(entry)
    board.telemetry = Telemetry(
        board.client, board.identity, clock, sensors, settings["interval_ms"], report, board.gaps,
        settings["telemetry_qos"], settings["expires_s"],
    )  # fmt: skip
    if settings["home_assistant"] or _exists(board.folder + _STATE_FOLDER + "/discovery"):
        board.discover(settings["home_assistant"])
    if settings["sleep_s"]:
        board.sleep(wake)


def _crash_report(state_folder, report):
    # Only where there is something to tell.
    try:
        os.stat(state_folder + "/traceback.txt")
    except OSError:
        return None
    from app.crash import CrashReport

    return CrashReport(report)


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
    # (client, None); where the flash cannot be read, with a store in RAM and why: the board must still be reachable.
    options = {
        "keep_alive": settings["keep_alive"],
        "clean_session": False,
        "policy": DROP_OLDEST,
        "will": Will(status.topic, status.payload(False, "connection lost"), qos=1, retain=True),
    }
    if "username" in secrets["mqtt"]:
        options.update(secrets["mqtt"])
    if settings["brokers"][0].startswith("mqtts:"):
        options["transports"] = {"mqtts": _tls(secrets["tls"])}
    name, brokers, slots = identity.device_id.encode(), tuple(settings["brokers"]), settings["outbox"]
    # A small file needs no block of its own up to this size, by the program size of the flash.
    store = FlashStore(state_folder + "/mqtt", slots, chunk=504 if sys.platform == "rp2" else 120)
    try:
        return Client(name, brokers, store=store, **options), None
    except StoreError as error:
        return Client(name, brokers, store=MemoryStore(slots), **options), "readings are not kept in flash: %s" % error


def _tls(files):
    from umqtt_robust.tls import TLS

    try:
        return TLS(files["ca"], files.get("cert"), files.get("key"))
    except (OSError, InvalidArgument) as error:
        raise _wrong("secrets.json", "tls", "%r: are the files named there on the board?" % error)


def _ntp(board):
    host = board.settings["ntp_host"]
    if host is None:
        # An operating system keeps the time itself.
        host = "" if system_clock(time, sys.platform) else _NTP_HOST
    if not host:
        return None
    import machine

    from app.ntp import Ntp

    rtc = machine.RTC() if hasattr(machine, "RTC") else None
    return Ntp(board.clock, host, board.wifi, board.log.report, rtc)


def _wrong(file, key, problem):
    # Its module is not kept for what hardly ever happens.
    from app.settings import SettingsError

    return SettingsError(file, key, problem)


def _hardware_id():
    import machine

    if not hasattr(machine, "unique_id"):
        raise _wrong("settings.json", "device_id", "must be given: this board has no unique_id()")
    return hardware_id(machine.unique_id())


def _network():
    try:
        import network
    except ImportError:
        raise _wrong("settings.json", "wifi", "must be empty: this board has no Wi-Fi")
    return network


def _exists(path):
    try:
        os.stat(path)
        return True
    except OSError:
        return False


def _state_folder(folder):
    path = folder.rstrip("/") + _STATE_FOLDER
    try:
        os.mkdir(path)
    except OSError:
        # It exists; if it could not be made, the store's first write fails and says so.
        pass
    return path
