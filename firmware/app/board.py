"""The parts of the running application, as the commands see them."""

import os


def exists(path):
    """Return whether there is a file or folder."""
    try:
        os.stat(path)
        return True
    except OSError:
        return False


class Board:
    """The parts. folder: holds settings.json, "" for the root; settings: dict; boots: startup.Startup; version: str.

    The build_* modules add state_folder, identity, clock, client, status, log, gaps, crash_report, wifi, ntp,
    commands, health and restart (calling it restarts the board). These may be None: telemetry, sensors and
    loop_timer in safe mode; files without an outbox in flash; ntp and discovery if not wanted; trial if no changed
    settings are on trial; sleeper if the board never sleeps; update until a command needs it; wake once the board
    is built. unreported is True while reported.py has settings to publish, None if no settings were ever desired.
    """

    telemetry = loop_timer = sensors = sleeper = update = files = ntp = discovery = commands = wake = trial = None
    unreported = None
    room_told = False
    commands_until = 0  # uptime in ms; guard.py limits unsigned commands with it

    def __init__(self, folder, settings, boots, version):
        self.folder = folder
        self.settings = settings
        self.boots = boots
        self.version = version

    def sleep(self, wake=None):
        """Start to sleep between readings. wake: the app.sleep.Wake that the last sleep kept, or None."""
        from app.sleep import Sleeper

        self.sleeper = Sleeper(self, wake)

    def discover(self, wanted):
        """Describe the metrics to Home Assistant; if not wanted, withdraw the descriptions."""
        from app.discovery import Discovery

        self.discovery = Discovery(self, wanted)

    def connected(self, session_present):
        """Handle the client's on_connect."""
        if self.discovery:
            self.discovery.connected(session_present)

    def dropped(self, packet_id, topic):
        """Handle a dropped message that was no reading: send it again if its content is kept elsewhere."""
        if self.commands:
            self.commands.dropped(packet_id)
        if topic == self.status.topic:
            self.status.again()
        if topic.endswith(b"/reported"):
            self.unreported = True
        if self.discovery:
            self.discovery.dropped(topic)


class Restart:
    """A restart of the board, requested by a call of this object (by a command, a failed trial); see restart.py.

    reset(): does not return; a tool on the cable that wants the prompt sets it.
    """

    asked = said = False
    since = reset = None

    def __call__(self):
        self.asked = True
