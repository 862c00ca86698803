"""Builds the third part of the application: radio, time and commands."""

from app.board import Restart, exists
from app.command_door import CommandDoor, first_bytes
from app.modules import once
from app.wifi import Wifi

_NTP_HOST = "pool.ntp.org"


def add_parts(board, secrets):
    """Add these parts to the Board. Raises SettingsError, naming the key."""
    client, settings, log = board.client, board.settings, board.log
    board.crash_report = _crash_report(board.state_folder, log.report)
    board.restart = Restart()
    board.files = _files(board)
    board.wifi = Wifi(_network() if settings["wifi"] else None, settings, secrets["wifi"], log.report)
    board.ntp = _ntp(board)
    if exists(board.state_folder + "/commands/desired"):
        board.unreported = not board.wake
    ledger = board.state_folder + "/commands"
    board.commands = CommandDoor(board, ledger, is_unfinished(ledger))
    for leaf in ("cmd", "desired"):
        client.on(board.identity.topic(leaf), board.commands.handle)
        # QoS 2 would take 5 KB of heap and more writes to flash: the ledger recognizes a repeated command by its id.
        client.subscribe(board.identity.topic(leaf), qos=1)


def _files(board):
    # Returns where readings may wait besides the outbox (Telemetry.files), or None.
    if getattr(board.client.outbox.store, "volatile", False):
        return None
    folder = board.state_folder + "/mqtt/later"
    files = once("overflow", "find", folder) if exists(folder) else [folder, 0, 0, 0]
    return None if board.settings["outbox"] and files[1] == files[2] else files


def _crash_report(state_folder, report):
    # Returns None if there is no traceback to publish.
    if not exists(state_folder + "/traceback.txt"):
        return None
    from app.crash import CrashReport

    return CrashReport(report)


def _ntp(board):
    host = board.settings["ntp_host"]
    if host is None:
        # An operating system keeps the time itself.
        host = "" if board.clock.kept_by_system else _NTP_HOST
    if not host:
        return None
    import machine

    from app.ntp import Ntp

    rtc = machine.RTC() if hasattr(machine, "RTC") else None
    return Ntp(board.clock, host, board.wifi, board.log.report, rtc)


def _network():
    try:
        import network

        network.WLAN  # images for boards with Ethernet have the module without WLAN
    except (ImportError, AttributeError):
        # Imported here, because it is hardly ever needed.
        from app.settings import SettingsError

        raise SettingsError("settings.json", "wifi", "must be empty: the image on this board has no Wi-Fi")
    return network


def is_unfinished(path):
    """Return True if the ledger may hold an unanswered command. Loading it decides; see its file layout."""
    newest = 0
    for n in range(16):
        newest = max(newest, _order(path + "/%d" % n))
    return newest > _order(path + "/sent")


def _order(name):
    return int.from_bytes(first_bytes(name)[4:], "little")
