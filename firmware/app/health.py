"""Whether the application is healthy: that feeds the watchdog and confirms the boot.

Healthy means that the loop runs and that readings are taken on schedule. The watchdog is fed by the loop alone: one
that hangs for longer than watchdog_ms, or goes round without doing its work, ends in a reset. A boot is confirmed by
CONFIRM_MS of healthy loop, or by the broker's acknowledgement of the first reading taken since. A version on trial
needs both: what cannot be reached any more could not be updated again, so it is given up without them after TRIAL_MS.
"""

import startup

CONFIRM_MS = 60_000
TRIAL_MS = 600_000
# In safe mode the whole application is tried again after so long: what made it fail may be over.
RETRY_MS = 3_600_000
# Whatever ends a boot after that has nothing to do with the end of the one before.
STEADY_MS = 3_600_000
# A reading may be late by its interval and this before the application counts as ill: a TLS handshake takes seconds.
_LATE_MS = 30_000


class Health:
    """client: umqtt_robust.Client; telemetry: None in safe mode; boots: startup.Startup; restart(): of the board;
    status: app.status.Status, which says when a version is no longer on trial.

    delivered: whether the broker has a reading of this boot; healthy_since: uptime in ms.
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
        """To be called once in every pass of the loop. Feeds the watchdog if all is well; returns whether it is."""
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
                self._end(self._boots.give_up)
        elif self.delivered or healthy_ms >= CONFIRM_MS:
            self.confirm()

    def _end(self, note):
        # Where it cannot be noted, the next boot comes to the same end, or gives the trial up by itself.
        self._note(note)
        self._restart()

    def _note(self, note):
        try:
            note()
        except OSError as error:
            self.error = "not noted in flash: %r" % error

    def _acknowledged(self, packet_id):
        # Not asked of the outbox alone: a reading that it dropped is not in it any more either.
        first_id = self._telemetry.first_id
        if first_id and not self._client.is_pending(first_id):
            self.delivered = True
            self._client.on_acknowledged = None

    def confirm(self):
        """This boot is good, and what runs is kept. A flash that takes no mark is tried again at the next pass."""
        on_trial = self._boots.on_trial
        try:
            self._boots.confirm()
            self.confirmed = True
            self.error = None
            if on_trial:
                self._status.extra.pop("trial", None)
                self._status.again()
        except OSError as error:
            self.error = "the boot is not confirmed in flash: %r" % error
