"""Delays TLS until the time of day is known: before that, an expired certificate cannot be recognised.

An rp2 starts in 2021, when certificates expired since then were valid, so the board's calendar proves nothing.
Loaded only if a broker is reached by TLS.
"""

from umqtt_robust.tls import ClockNotSet


class AfterClock:
    """A factory of transports that replaces `tls`, which umqtt_robust.tls.TLS() returned. clock: app.clock.Clock."""

    def __init__(self, clock, tls):
        self._clock = clock
        self._tls = tls

    def __call__(self, host, port, path):
        """Return the transport that `tls` makes. Raises ClockNotSet until the clock knows the time."""
        if self._clock.unix_ms() is None:
            raise ClockNotSet("the time is not known yet")
        return self._tls(host, port, path)
