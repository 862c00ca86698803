"""Joins the networks of the settings, one after the other, and waits longer after every round that failed.

The board never restarts because the network is away: its readings wait in the outbox.
"""

_ATTEMPT_MS = 15_000
_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000


class Wifi:
    """wlan: network.WLAN in station mode, or None where a cable or an operating system is the network.

    networks: list of SSIDs, tried in order; passwords: dict of SSID to password.
    """

    def __init__(self, wlan, networks, passwords):
        self._wlan = wlan
        self._networks = networks
        self._passwords = passwords
        self._position = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._attempt_until = None
        self._pause_until = 0
        self.failed_rounds = 0
        self.last_error = None
        if wlan is not None:
            wlan.active(True)

    @property
    def connected(self):
        return self._wlan is None or self._wlan.isconnected()

    def step(self, now_ms):
        """Begin, watch or give up an attempt. now_ms: Clock.uptime_ms()."""
        if self.connected:
            self._attempt_until = None
            self._pause_ms = _FIRST_PAUSE_MS
            return
        if self._attempt_until is not None:
            if now_ms < self._attempt_until:
                return
            self._attempt_until = None
            self._next_network(now_ms)
        if now_ms >= self._pause_until and self._networks:
            self._begin(now_ms)

    def _begin(self, now_ms):
        ssid = self._networks[self._position]
        # A driver refuses some calls for a while after a failure; the next attempt then begins in its turn.
        try:
            self._wlan.disconnect()
            self._wlan.connect(ssid, self._passwords.get(ssid))
        except OSError as error:
            self.last_error = "%s: %r" % (ssid, error)
        self._attempt_until = now_ms + _ATTEMPT_MS

    def _next_network(self, now_ms):
        self._position += 1
        if self._position < len(self._networks):
            return
        self._position = 0
        self.failed_rounds += 1
        self._pause_until = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
