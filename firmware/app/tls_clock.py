"""TLS that waits for the time of day: whether a certificate has expired cannot be told before.

An rp2 wakes in 2021, which is a date that expired certificates are valid on, so the board's calendar says nothing.
Loaded only where a broker is reached by TLS.
"""

from umqtt_robust.tls import ClockNotSet


class AfterClock:
    """Takes the place of what umqtt_robust.tls.TLS() returned, `tls`. clock: app.clock.Clock."""

    def __init__(self, clock, tls):
        self._clock = clock
        self._tls = tls

    def __call__(self, host, port, path):
        """Raises ClockNotSet until the clock knows the time."""
        if self._clock.unix_ms() is None:
            raise ClockNotSet("the time is not known yet")
        return self._tls(host, port, path)
