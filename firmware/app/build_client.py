"""Builds the second part of the application: its MQTT client, with the outbox in flash, and its log."""

import sys
from gc import collect

import startup

from app.gaps import Gaps
from app.log import Log
from app.modules import forget
from umqtt_robust import Client, Will
from umqtt_robust.errors import InvalidArgument, StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.policy import DROP_OLDEST

_MOST_IN_RAM = _SLOTS = 64  # messages; readings for which these slots are too few wait in files


def add_client(board, secrets, store_error=None):
    """Add client, log and gaps to the Board from build_board.begin(). Raises SettingsError, naming the key.

    store_error: why the outbox has to be in RAM, or None. If the flash fails, it is in RAM too: the board must stay
    reachable.
    """
    cloud = None
    if board.settings["topics"]:
        from app.cloud import Cloud

        cloud = Cloud(board, secrets["mqtt"])
    store_error = _add_client(board, secrets, store_error, cloud)
    _add_log(board)
    if cloud:
        cloud.attach(board.client)
    for level, text in (("warning", board.boots.error), ("error", store_error)):
        if text:
            board.log.report(level, text)


def _add_client(board, secrets, store_error, cloud):
    # Returns why the outbox is in RAM, or None.
    settings, status = board.settings, board.status
    will = cloud.will if cloud else (status.topic, status.payload(False, "connection lost"))
    options = {
        "keep_alive": settings["keep_alive"],
        "clean_session": False,
        "policy": DROP_OLDEST,
        "will": Will(*will, qos=1, retain=True),
    }
    options.update(cloud.options if cloud else secrets["mqtt"])
    if settings["brokers"][0].startswith("mqtts:"):
        tls = _tls(secrets["tls"])
        if settings["ntp_host"] != "":
            from app.tls_clock import AfterClock

            tls = AfterClock(board.clock, tls)
        # Without NTP there is only the board's own calendar; the client refuses TLS while that was never set.
        options["transports"] = {"mqtts": tls}
    if settings["wifi"] and _are_names(settings["brokers"]):
        from app.names import ByName

        scheme = settings["brokers"][0].partition(":")[0]
        options["transports"] = {scheme: ByName(board, options.get("transports", {}).get(scheme))}
    # Room for two readings: heap is scarce, and larger messages are sent uncopied. Set on the class, because one more
    # attribute of the instance would make its attribute table grow.
    Client.tx_size = 512
    name, brokers, slots = board.identity.device_id.encode(), tuple(settings["brokers"]), settings["outbox"] or _SLOTS
    if len(brokers) == 1:
        brokers = brokers[0]  # the client parses a single address without loading another module
    if settings["cluster"]:
        brokers = {settings["cluster"]: brokers}
    # Files up to this size need no block of their own; the size depends on the program size of the flash.
    chunk = 504 if sys.platform == "rp2" else 120
    # A long backlog takes longer to read than the shortest watchdogs wait.
    feed = startup.watchdog.feed if startup.watchdog else None
    if not store_error and board.boots.failures > startup.MOST_FAILURES:
        store_error = "safe mode failed with it"
    if not store_error:
        try:
            # Nothing is subscribed to at QoS 2. What a broker sends at it all the same must not wear out the flash.
            store = FlashStore(board.state_folder + "/mqtt", slots, chunk, on_progress=feed, inbound=False)
            board.client = Client(name, brokers, store=store, **options)
            # Seldom needed again: for what comes in while more messages wait than the index holds.
            forget("backlog", package="umqtt_robust")
            return None
        except (StoreError, MemoryError) as error:
            store_error = error if isinstance(error, StoreError) else "no memory for its index: %s" % error
    from umqtt_robust.store import MemoryStore

    store = None
    collect()
    text = "readings are not kept in flash: %s" % store_error
    board.client = Client(name, brokers, store=MemoryStore(min(slots, _MOST_IN_RAM)), **options)
    return text


def _add_log(board):
    client, identity, boots = board.client, board.identity, board.boots
    # The log may fill three quarters of the outbox; the last quarter is for readings and replies.
    most_pending = client.outbox.store.slots * 3 // 4
    board.log = log = Log(client, identity, board.clock, board.settings["log_level"], most_pending)
    started = "%s %s, boot %d" % (identity.device_id, board.version, boots.count)
    log.report("info", started + (", safe mode" if boots.safe else ""))
    board.gaps = Gaps(board.state_folder + "/gaps", identity.boot, log.report)
    client.on_dropped = board.gaps.on_dropped
    if client.quarantined:  # from before this boot
        board.gaps.aside = [message[1] for message in client.part("quarantine").messages()]
    client.on_error = client.on_disconnect = log.failed
    client.on_dead_letter = log.dead_letter
    client.on_connect = board.connected
    board.gaps.on_other = board.dropped


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
        # Imported here, because it is hardly ever needed.
        from app.settings import SettingsError

        raise SettingsError("secrets.json", "tls", "%r: are the files named there on the board?" % error)
