"""The parts of the running application, as the commands see them."""


class Board:
    """The parts. folder: holds settings.json, "" for the root; settings: dict; boots: startup.Startup; version: str.

    assembly.py and assembly_parts.py add state_folder, identity, clock, client, status, log, gaps, crash_report,
    wifi, ntp, commands, health and restart (calling it restarts the board). These may be None: telemetry, sensors and
    loop_timer in safe mode; ntp and discovery if not wanted; trial if no changed settings are on trial; sleeper if
    the board never sleeps; update until a command needs it; wake except between the halves of assembly. unreported is
    True while reported.py has settings to publish, None if no settings were ever desired.
    """

    telemetry = loop_timer = sensors = sleeper = update = ntp = discovery = commands = wake = trial = None
    unreported = None
    commands_until = 0  # uptime in ms; guard.py limits unsigned commands with it

    def __init__(self, folder, settings, boots, version):
        self.folder = folder
        self.settings = settings
        self.boots = boots
        self.version = version

    def updater(self, command):
        """Return the part that carries out updates or rotations, one at a time. command: "update" or "rotate"."""
        if not self.update or self.update.command != command and not self.update.busy:
            if command == "rotate":
                from app.rotation import Rotation as Part
            else:
                from app.update import Updater as Part
            self.update = Part(self)
        return self.update

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
        self.log.connected()
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

    def apply(self, settings, key):
        """Use new settings, in which `key` has changed; return True if that takes effect at once."""
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
            telemetry.expires_s = settings[key]  # for readings taken from now on
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
