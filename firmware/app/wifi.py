"""Joins the networks of the settings, one after the other, and waits longer after every failed round.

The board never restarts because there is no network: its readings wait in the outbox. Nothing here blocks. An attempt
that the driver never ends is given up after 15 s. After every third failed round the radio is switched off and on,
which helps a driver that hangs. Any exception of a driver is logged and counts as a failed attempt: esp32 raises
RuntimeError besides OSError, even when the radio is requested, because its memory comes from the same heap.
"""

from app.modules import once

_ATTEMPT_MS = 15_000
# The status of the last attempt may stay for a moment (seen on esp32), so earlier failures are ignored.
_SETTLE_MS = 2_000
_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_ROUNDS_UNTIL_RESTART = 3


class Wifi:
    """The Wi-Fi connection. network: the module, or None if a cable or an operating system provides the network.

    settings: dict with wifi (SSIDs, tried in order), country, hostname and power_save; passwords: dict of SSID to
    password; report(level, text): of a log. Counter: failed_rounds.
    """

    def __init__(self, network, settings, passwords, report):
        self._network = network
        self._networks = settings["wifi"]
        self._settings = settings
        self._passwords = passwords
        self._report = report
        self._position = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._attempt_at = None
        self._pause_until = 0
        self._told = set()
        # The first step switches the radio on: on a Pico W it takes pins that measure the supply before that.
        self._restart = True
        self.failed_rounds = 0
        self._wlan = None

    @property
    def connected(self):
        return self._network is None or self._wlan is not None and bool(self._call(self._wlan.isconnected))

    def step(self, now_ms):
        """Begin, watch or give up an attempt. now_ms: Clock.uptime_ms()."""
        if self.connected:
            if self._attempt_at is not None:
                self._attempt_at = None
                self._report("info", "Wi-Fi: joined " + self._networks[self._position])
            if self._told:
                self._told = set()
            self._pause_ms = _FIRST_PAUSE_MS
            return
        if self._attempt_at is not None:
            elapsed = now_ms - self._attempt_at
            failure = self._failure() if elapsed >= _SETTLE_MS else None
            if failure is None and elapsed < _ATTEMPT_MS:
                return
            self._failed(failure or "no connection within %d s" % (_ATTEMPT_MS // 1000), now_ms)
        if now_ms >= self._pause_until and self._networks:
            self._begin(now_ms)

    def rssi(self):
        """Return the signal strength in dBm, or None if there is none."""
        try:
            return self._wlan.status("rssi") if self.connected and self._wlan else None
        except Exception:  # noqa: BLE001 - the link may have gone just now; step() tells when it has
            return None

    def name_servers(self):
        """Return addresses to ask for names: the network's DNS server, and its gateway, which often is one too."""
        found = self._call(self._wlan.ifconfig) if self._wlan and self.connected else None
        if not found or found[3] == "0.0.0.0":
            return ()
        return (found[3],) if found[2] in (found[3], "0.0.0.0") else (found[3], found[2])

    def off(self):
        """Switch the radio off."""
        wlan = self._wlan
        if wlan:
            self._call(wlan.disconnect)
            self._call(wlan.active, False)
            if hasattr(wlan, "deinit"):
                # rp2: without it the radio's chip stays powered, and the driver keeps its state.
                self._call(wlan.deinit)

    def _call(self, function, *arguments):
        # Returns what the function returns, or None if it raises; the error is reported once.
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            self._tell("Wi-Fi: %r" % error)
            return None

    def _tell(self, text):
        if text not in self._told:
            self._told.add(text)
            self._report("warning", text)

    def _begin(self, now_ms):
        if self._restart:
            self._restart = False
            self.off()
            self._wlan = self._call(once, "radio", "prepare", self._network, self._settings, self._call)
        wlan = self._wlan
        ssid = self._networks[self._position]
        # An attempt that cannot even begin counts like one that fails, so the next is not made at once.
        self._attempt_at = now_ms
        if wlan:
            self._call(wlan.disconnect)
            self._call(wlan.connect, ssid, self._passwords.get(ssid) or None)

    def _failure(self):
        # Returns the status that says what went wrong, or None while the attempt may still succeed.
        status = self._call(self._wlan.status) if self._wlan else "the radio cannot be used"
        if status is None or isinstance(status, str):
            return status
        failed = 0 < status < 1000 if self._network.STAT_GOT_IP > 1000 else status < 0
        return status if failed else None

    def _failed(self, status, now_ms):
        ssid = self._networks[self._position]
        key = (ssid, status)
        if key not in self._told:
            self._told.add(key)
            self._report("warning", "Wi-Fi: %s: %s" % (ssid, once("reasons", "wifi", self._network, status)))
        self._attempt_at = None
        if self._wlan:
            self._call(self._wlan.disconnect)
        else:
            self._restart = True
        self._position += 1
        if self._position < len(self._networks):
            return
        self._position = 0
        self.failed_rounds += 1
        if self.failed_rounds % _ROUNDS_UNTIL_RESTART == 0:
            self._restart = True
        self._pause_until = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
