"""Restarts the board in an orderly way: announces it, gives the outbox some time to drain, then resets."""

import startup

_SAY_MS = 3_000
_CLOSE_MS = 1_000


class Restart:
    """An orderly restart. A call of the object (by a command, a failed trial) requests it; step() carries it out.
    reset(): does not return; a tool on the cable that wants the prompt replaces it.
    """

    def __init__(self, client, clock, status, boots, reset):
        self._client = client
        self._clock = clock
        self._status = status
        self._boots = boots
        self.reset = reset
        self._since = None
        self._said = False
        self.asked = False

    def __call__(self):
        self.asked = True

    def step(self):
        """Do nothing until a restart is requested; then a little in every pass of the loop until the board resets."""
        if not self.asked:
            return
        client = self._client
        now = self._clock.uptime_ms()
        if self._since is None:
            self._since = now
            try:
                if self._boots.state() != startup.RETRY:
                    # An intended restart does not count as a failure.
                    self._boots.mark(startup.INTERRUPTED)
            except OSError:
                pass  # it may count as one failure: three in a row are needed
        waited = now - self._since
        if not self._said and client.connected:
            self._said = self._status.say(client, False, "restarting") != 0
        if not client.connected or client.pending == 0 or waited >= _SAY_MS:
            if client.closed or waited >= _SAY_MS + _CLOSE_MS:
                self.reset()
            client.disconnect()


def hardware_reset():
    """Call machine.reset(), or end the program where there is none."""
    try:
        from machine import reset
    except ImportError:
        raise SystemExit
    reset()
