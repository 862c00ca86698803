"""Builds the first half of the application: the board's identity, its client, and its status, log and gaps.

This module is unloaded before the second half, assembly_parts.py, is loaded (start.py). Parts that are not configured
are not imported. Lasting objects must not refer to any function or lambda of these two modules.
"""

import os
import sys
import time

import startup

from app import VERSION
from app.board import Board
from app.clock import Clock, system_clock
from app.gaps import Gaps
from app.hardware import hardware_id, reset_cause, start_watchdog
from app.identity import Identity
from app.log import Log
from app.status import Status
from umqtt_robust import Client, Will
from umqtt_robust.errors import InvalidArgument, StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.policy import DROP_OLDEST
from umqtt_robust.store import MemoryStore

_STATE_FOLDER = "/state"


def assemble(folder, settings, secrets, store_error=None):
    """Return the Board for the settings (as settings_files.load() gives them) in folder, up to its log and gaps.

    store_error: why the outbox has to be in RAM, or None. Raises SettingsError, naming the key.
    """
    boots = startup.now or startup.begin()
    if settings["watchdog_ms"] and not startup.watchdog:
        start_watchdog(settings["watchdog_ms"])
    board = Board(folder.rstrip("/"), settings, boots, VERSION)
    board.wake = _wake(boots)
    # The boot count in the identity is durable before anything is read, sent or retried.
    device_id = settings["device_id"] or _hardware_id()
    board.identity = identity = Identity(device_id, boots.count, board.wake and board.wake.random_bits)
    board.clock = clock = Clock(time.ticks_ms, time.ticks_diff, system_clock(time, sys.platform))
    extra = {"slot": boots.slot, "cause": reset_cause()}
    if boots.on_trial:
        extra["trial"] = True
    if boots.failed != startup.NONE:
        extra["rolled_back"] = boots.failed
    board.status = Status(identity, VERSION, "safe mode" if boots.safe else "boot", extra)
    board.state_folder = _state_folder(folder)
    client, store_error = _client(board, settings, secrets, store_error)
    board.client = client
    # The log may fill three quarters of the outbox; the last quarter is for readings and replies.
    board.log = log = Log(client, identity, clock, settings["log_level"], settings["outbox"] * 3 // 4)
    started = "%s %s, boot %d" % (device_id, VERSION, boots.count)
    log.report("info", started + (", safe mode" if boots.safe else ""))
    board.gaps = Gaps(board.state_folder + "/gaps", identity.boot, log.report)
    client.on_dropped = board.gaps.on_dropped
    client.on_error = client.on_disconnect = log.link_failed
    client.on_dead_letter = log.dead_letter
    client.on_connect = board.connected
    board.gaps.on_other = board.dropped
    for level, text in (("warning", boots.error), ("error", store_error)):
        if text:
            log.report(level, text)
    return board


def _wake(boots):
    # Returns the state kept over deep sleep, or None: then this is a normal boot.
    if not boots.woke:
        return None
    from app.sleep import woken

    wake = woken(boots.count)
    if wake is None:
        boots.count_boot()
    return wake


def _client(board, settings, secrets, store_error):
    # Returns (client, None), or, if the flash fails, one with its store in RAM, and why: the board must stay reachable.
    identity, status, state_folder, clock = board.identity, board.status, board.state_folder, board.clock
    options = {
        "keep_alive": settings["keep_alive"],
        "clean_session": False,
        "policy": DROP_OLDEST,
        "will": Will(status.topic, status.payload(False, "connection lost"), qos=1, retain=True),
    }
    if "username" in secrets["mqtt"]:
        options.update(secrets["mqtt"])
    if settings["brokers"][0].startswith("mqtts:"):
        tls = _tls(secrets["tls"])
        if settings["ntp_host"] != "":
            from app.tls_clock import AfterClock

            tls = AfterClock(clock, tls)
        # Without NTP there is only the board's own calendar; the client refuses TLS while that was never set.
        options["transports"] = {"mqtts": tls}
    if settings["wifi"] and _are_names(settings["brokers"]):
        from app.names import ByName

        scheme = settings["brokers"][0].partition(":")[0]
        options["transports"] = {scheme: ByName(board, options.get("transports", {}).get(scheme))}
    # Room for two readings: heap is scarce, and larger messages are sent uncopied. Set on the class, because one more
    # attribute of the instance would make its attribute table grow.
    Client.tx_size = 512
    name, brokers, slots = identity.device_id.encode(), tuple(settings["brokers"]), settings["outbox"]
    if len(brokers) == 1:
        brokers = brokers[0]  # the client parses a single address without loading another module
    if settings["cluster"]:
        brokers = {settings["cluster"]: brokers}
    # Files up to this size need no block of their own; the size depends on the program size of the flash.
    store = FlashStore(state_folder + "/mqtt", slots, chunk=504 if sys.platform == "rp2" else 120)
    if not store_error:
        try:
            return Client(name, brokers, store=store, **options), None
        except StoreError as error:
            store_error = error
    text = "readings are not kept in flash: %s" % store_error
    return Client(name, brokers, store=MemoryStore(slots), **options), text


def _are_names(brokers):
    # True if one of them is a name, not a numeric address.
    for broker in brokers:
        if broker.partition("://")[2].strip("0123456789.:"):
            return True
    return False


def _tls(files):
    from umqtt_robust.tls import TLS

    try:
        return TLS(files["ca"], files.get("cert"), files.get("key"))
    except (OSError, InvalidArgument) as error:
        raise _wrong("secrets.json", "tls", "%r: are the files named there on the board?" % error)


def _hardware_id():
    import machine

    if not hasattr(machine, "unique_id"):
        raise _wrong("settings.json", "device_id", "must be given: this board has no unique_id()")
    return hardware_id(machine.unique_id())


def _state_folder(folder):
    path = folder.rstrip("/") + _STATE_FOLDER
    try:
        os.mkdir(path)
    except OSError:
        # It exists; if it could not be made, the store's first write fails and says so.
        pass
    return path


def _wrong(file, key, problem):
    # Imported here, because it is hardly ever needed.
    from app.settings import SettingsError

    return SettingsError(file, key, problem)
