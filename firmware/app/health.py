"""Decides whether the application is healthy; if so, feeds the watchdog and confirms the boot.

Healthy means that the loop runs and that readings are taken on schedule. Only the loop feeds the watchdog: a loop
that hangs for longer than watchdog_ms, or runs without doing its work, ends in a reset. A boot is confirmed by
CONFIRM_MS of healthy loop, or by the broker's acknowledgement of the first reading taken since. A version on trial
needs both, and is given up after TRIAL_MS without them: a board out of reach could not be updated again.
"""

import startup

CONFIRM_MS = 60_000
TRIAL_MS = 600_000
# Safe mode tries the whole application again after this time: the cause of the failures may be gone.
RETRY_MS = 3_600_000
# The end of a boot after this time is unrelated to the end of the boot before.
STEADY_MS = 3_600_000
# A reading may be late by its interval plus this before the application counts as unhealthy: TLS takes seconds.
_LATE_MS = 30_000


class Health:
    """The health of this boot. client: umqtt_robust.Client; telemetry: None in safe mode; boots: startup.Startup;
    restart(): of the board; status: app.status.Status, which says when a version is no longer on trial.

    delivered: True once the broker has a reading of this boot; healthy_since: uptime in ms.
    """

    def __init__(self, client, clock, telemetry, boots, restart, status):
        self._client = client
        self._clock = clock
        self._telemetry = telemetry
        self._boots = boots
        self._restart = restart
        self._status = status
        self._seq = -1
        self.delivered = False
        self._taken_at = clock.uptime_ms()
        self.healthy_since = self._taken_at
        self.confirmed = self._steady = False
        self.error = None
        if telemetry:
            client.on_acknowledged = self._acknowledged

    def step(self):
        """Feed the watchdog if the application is healthy; return True if so. Call it in every pass of the loop."""
        now = self._clock.uptime_ms()
        well = self._on_schedule(now)
        if not well:
            self.healthy_since = now
            return False
        if startup.watchdog:
            startup.watchdog.feed()
        if not self.confirmed:
            self._decide(now)
        elif not self._steady and now - self.healthy_since >= STEADY_MS:
            self._steady = True
            self._note(lambda: self._boots.mark(startup.STEADY))
        return True

    def _on_schedule(self, now):
        telemetry = self._telemetry
        if not telemetry or telemetry.paused or telemetry.seq != self._seq:
            self._taken_at = now
            if telemetry:
                self._seq = telemetry.seq
            return True
        return now - self._taken_at <= 2 * telemetry.interval_ms + _LATE_MS

    def _decide(self, now):
        healthy_ms = now - self.healthy_since
        if self._boots.safe:
            if healthy_ms >= RETRY_MS:
                self._end(lambda: self._boots.mark(startup.RETRY))
        elif self._boots.on_trial:
            if self.delivered and healthy_ms >= CONFIRM_MS:
                self.confirm()
            elif now >= TRIAL_MS:
                self._end(lambda: __import__("boot_choice").give_up(self._boots))
        elif self.delivered or healthy_ms >= CONFIRM_MS:
            self.confirm()

    def _end(self, note):
        # If it cannot be noted, the next boot comes to the same end, or gives the trial up by itself.
        self._note(note)
        self._restart()

    def _note(self, note):
        try:
            note()
        except OSError as error:
            self.error = "the health of this boot is not noted in flash: %r" % error

    def _acknowledged(self, packet_id):
        # Checked only after an acknowledgement, because a reading that the outbox dropped is not pending either.
        first_id = self._telemetry.first_id
        if first_id and not self._client.is_pending(first_id):
            self.delivered = True
            self._client.on_acknowledged = None

    def confirm(self):
        """Confirm this boot and keep the version that runs. If the flash refuses, the next pass tries again."""
        on_trial = self._boots.on_trial
        try:
            if on_trial:
                __import__("boot_choice").adopt(self._boots)
            self._boots.mark(startup.CONFIRMED)
            self.confirmed = True
            self.error = None
            if on_trial:
                self._status.extra.pop("trial", None)
                self._status.again()
        except OSError as error:
            self.error = "the boot is not confirmed in flash: %r" % error
