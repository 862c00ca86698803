"""Builds the last part of the application: sensors, readings and health."""

import sys

from app.board import exists
from app.health import Health


def add_readings(board):
    """Add these parts to the Board. Raises SettingsError, naming the key."""
    if not board.boots.safe:
        _add_telemetry(board)
    board.wake = None
    board.health = Health(board.client, board.clock, board.telemetry, board.boots, board.restart, board.status)
    if board.telemetry and (
        exists(board.folder + "/settings.json.was") or exists(board.folder + "/secrets.json.was")
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
        settings["telemetry_qos"], settings["expires_s"], settings["encoding"], board.files,
    )  # fmt: skip
    if settings["home_assistant"] or exists(board.state_folder + "/discovery"):
        board.discover(settings["home_assistant"])
    if settings["sleep_s"]:
        board.sleep(board.wake)
