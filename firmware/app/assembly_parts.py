"""Builds the second half of the application: radio, time, readings and commands, on the existing client.

assembly.py builds the first half.
"""

import os
import sys

from app.command_door import CommandDoor
from app.health import Health
from app.restart import Restart, hardware_reset
from app.wifi import Wifi

_NTP_HOST = "pool.ntp.org"


def add_parts(board, secrets):
    """Add the remaining parts to the Board from assembly.assemble(). Raises SettingsError, naming the key."""
    client, clock, settings, boots, log = board.client, board.clock, board.settings, board.boots, board.log
    board.crash_report = _crash_report(board.state_folder, log.report)
    board.restart = Restart(client, clock, board.status, boots, hardware_reset)
    board.wifi = Wifi(_network() if settings["wifi"] else None, settings, secrets["wifi"], log.report)
    board.ntp = _ntp(board)
    if not boots.safe:
        _add_telemetry(board)
    if _exists(board.state_folder + "/commands/desired"):
        board.unreported = not board.wake
    board.wake = None
    board.commands = CommandDoor(board, board.state_folder + "/commands")
    for leaf, qos in (("cmd", 2), ("desired", 1)):
        client.on(board.identity.topic(leaf), board.commands.handle)
        client.subscribe(board.identity.topic(leaf), qos=qos)
    board.health = Health(client, clock, board.telemetry, boots, board.restart, board.status)
    if board.telemetry and (
        _exists(board.folder + "/settings.json.was") or _exists(board.folder + "/secrets.json.was")
    ):
        from app.settings_trial import Trial

        board.trial = Trial(board)


def _add_telemetry(board):
    # Adds the parts that safe mode runs without.
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
        settings["telemetry_qos"], settings["expires_s"], settings["encoding"],
    )  # fmt: skip
    if settings["home_assistant"] or _exists(board.state_folder + "/discovery"):
        board.discover(settings["home_assistant"])
    if settings["sleep_s"]:
        board.sleep(board.wake)


def _crash_report(state_folder, report):
    # Returns None if there is no traceback to publish.
    if not _exists(state_folder + "/traceback.txt"):
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


def _exists(path):
    try:
        os.stat(path)
        return True
    except OSError:
        return False
