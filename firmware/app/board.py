"""The parts of the running application, as the commands see them."""


class Board:
    """folder: where settings.json lies, "" for the root; settings: dict; boots: startup.Startup; version: str.

    start.py adds state_folder, identity, clock, client, status, log, gaps, crash_report, wifi, ntp, commands, health
    and restart (called, it restarts the board). telemetry, sensors and loop_timer are None in safe mode, ntp and
    discovery where they are not wanted, trial where no changed settings are on trial, sleeper where the board is always
    awake, update until a command needs it, and wake but between the halves of the making. unreported is true while
    reported.py has something to tell, None where no settings were ever desired.
    """

    telemetry = loop_timer = sensors = sleeper = update = ntp = discovery = commands = wake = trial = None
    unreported = None
    commands_until = 0  # ms of uptime: guard.py counts commands by it

    def __init__(self, folder, settings, boots, version):
        self.folder = folder
        self.settings = settings
        self.boots = boots
        self.version = version

    def updater(self, command):
        """The part that carries out updates or rotations, one at a time. command: "update" or "rotate"."""
        if not self.update or self.update.command != command and not self.update.busy:
            if command == "rotate":
                from app.rotation import Rotation as Part
            else:
                from app.update import Updater as Part
            self.update = Part(self)
        return self.update

    def sleep(self, wake=None):
        """Begin to sleep between readings. wake: what the sleep before this start kept."""
        from app.sleep import Sleeper

        self.sleeper = Sleeper(self, wake)

    def discover(self, wanted):
        """Describe the metrics to Home Assistant, or take that back."""
        from app.discovery import Discovery

        self.discovery = Discovery(self, wanted)

    def connected(self, session_present):
        """For the client's on_connect."""
        self.log.connected()
        if self.discovery:
            self.discovery.connected(session_present)

    def dropped(self, packet_id, topic):
        """The outbox gave up a message that was no reading: what is kept elsewhere goes again."""
        if self.commands:
            self.commands.dropped(packet_id)
        if topic == self.status.topic:
            self.status.again()
        if topic.endswith(b"/reported"):
            self.unreported = True
        if self.discovery:
            self.discovery.dropped(topic)

    def apply(self, settings, key):
        """Use the settings, of which `key` has changed, as far as that can be done now; returns whether it could."""
        self.settings = settings
        if self.unreported is not None:
            self.unreported = True
        telemetry = self.telemetry
        if key == "log_level":
            self.log.level = settings[key]
            return True
        if key == "telemetry_qos" and telemetry:
            telemetry.qos = settings[key]
            return True
        if key == "expires_s" and telemetry:
            telemetry.expires_s = settings[key]  # of readings taken from now on
            return True
        if key == "home_assistant" and telemetry:
            self.discover(settings[key])
            return True
        if key == "interval_ms" and telemetry:
            telemetry.interval_ms = settings[key]
            if not telemetry.paused:
                telemetry.resume()  # the next reading is taken now, and the schedule counts from it
            return True
        if key == "sleep_s" and telemetry:
            if not settings[key]:
                self.sleeper = None
                telemetry.interval_ms = settings["interval_ms"]
                telemetry.resume()
            elif not self.sleeper:
                self.sleep()
            return True
        return False
