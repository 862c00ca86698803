"""Sets the clock from a time server (SNTP, RFC 5905 section 14), periodically.

Nothing here blocks, not even the look-up of the server's name (names.py), except if only getaddrinfo() can find it:
that takes up to 14 s on lwIP (7 s for each of two name servers that do not answer). So an address is kept, and the
name is looked up again only after _RESOLVE_AFTER requests without an answer, never more often than the pauses
between requests allow. A server that is of no use is left at once, for the next address of its name; one that denies
its service is never asked again (RFC 5905, 7.4).
"""

import os
import socket
import time

from app.modules import forget

_PORT = 123
_TIMEOUT_MS = 2_000
# How often to look for the answer; half of it is the error of the measured time.
_LOOK_MS = 10
_FIRST_PAUSE_MS = 8_000
_LONGEST_PAUSE_MS = 1_024_000
# Up to 256 s are added at random, so that boards that restart together do not ask at the same time.
_PERIOD_MS = 3_600_000
_RESOLVE_AFTER = 3
# A larger step is logged; a smaller one is the drift of a common crystal.
_LARGE_STEP_MS = 2_000
_VERSION_4_CLIENT = 0x23


class Ntp:
    """An SNTP client. host: "name" or "name:port"; wifi: its `connected` is True if there is a network;
    report(level, text): of a log; rtc: machine.RTC, the board's own calendar, or None. Counters: requests, answers.

    address: of getaddrinfo(), None until it is found (ntp_address.py); denied: addresses that are never asked again.
    """

    def __init__(self, clock, host, wifi, report, rtc=None):
        self.clock = clock
        self.host, _, port = host.partition(":") if host.count(":") == 1 else (host, "", "")
        self.port = int(port) if port else _PORT
        self.wifi = wifi
        self._report = report
        self._rtc = rtc
        self.address = None
        self._socket = None
        self.lookup = None
        self.turn = 0  # which of the name's addresses is asked
        self.alone = True  # it has no other one
        self.denied = []
        self.failures = 0  # look-ups in a row
        self._next_ms = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._silent = 0
        self._told = None
        self.requests = 0
        self.answers = 0

    def step(self):
        """Do a little of the work. Returns the milliseconds until there is more to do."""
        now = self.clock.uptime_ms()
        if self._socket:
            return self._look(now)
        if now < self._next_ms:
            return self._next_ms - now
        if not self.wifi.connected:
            return _LOOK_MS * 10
        try:
            if not self.address and not self._find():
                return _LOOK_MS * 10
            self._ask()
        except OSError as error:
            # This includes a name that was not found; on some ports the only argument is then a text.
            if self.address:
                self._leave()
            else:
                self.failures += 1
            return self._failed("%s: %r" % (self.host, error))
        return _LOOK_MS

    def _find(self):
        # Returns False while the name is being looked up.
        from app.ntp_address import find

        address = find(self, socket)
        if not address:
            return False
        self.address = address
        self._end_lookup()
        forget("names", "ntp_address")  # seldom needed again: the address is kept
        return True

    def _end_lookup(self):
        if self.lookup:
            self.lookup.close()
            self.lookup = None

    def _ask(self):
        # Sent in place of our transmit time; the server returns it, which proves that it has seen this request.
        self._nonce = os.urandom(8)
        self._socket = socket.socket(self.address[0], socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.requests += 1
        self._asked_at = self.clock.uptime_ms()
        self._socket.sendto(bytes([_VERSION_4_CLIENT]) + bytes(39) + self._nonce, self.address[-1])

    def _look(self, now):
        try:
            data = self._socket.recv(128)
        except OSError:
            # EAGAIN: no answer yet. A closed port (ICMP) counts as no answer too: it may be open later.
            data = b""
        if len(data) < 48 or data[24:32] != self._nonce:
            # An answer that does not match the request is ignored, because anybody can send one.
            if now - self._asked_at < _TIMEOUT_MS:
                return _LOOK_MS
            self._silent += 1
            return self._failed("%s: no answer: does it serve time, and may the board reach it?" % self.host)
        from app.ntp_answer import NtpError, decode, set_calendar

        try:
            unix_ms = decode(data) + (now - self._asked_at) // 2
            step = self.clock.synchronised(unix_ms)
        except NtpError as error:
            if error.denied:
                self.denied.append(self.address[-1])
            if error.final and self.alone:
                self._pause_ms = _LONGEST_PAUSE_MS
            self._leave()
            return self._failed("%s: %s" % (self.host, error))
        except ValueError as error:
            return self._failed("%s: %s" % (self.host, error))
        finally:
            forget("ntp_answer")
        self._close()
        self.answers += 1
        self._silent = 0
        self._told = None
        self._pause_ms = _FIRST_PAUSE_MS
        self._next_ms = now + _PERIOD_MS + os.urandom(1)[0] * 1000
        if step is None:
            self._report("info", "clock: set by %s" % self.host)
        elif abs(step) > _LARGE_STEP_MS:
            self._report("warning", "clock: set %s by %d ms" % ("forward" if step > 0 else "back", abs(step)))
        if self._rtc:
            try:
                set_calendar(self._rtc, time.gmtime, unix_ms)
            except OSError as error:
                self._report("debug", "clock: the board's calendar was not set: %r" % error)
        return _PERIOD_MS

    def _leave(self):
        # Another address of the name is asked next.
        self.turn += 1
        self.address = None

    def _failed(self, text):
        self._close()
        self._end_lookup()
        if self._silent >= _RESOLVE_AFTER:
            self._silent = 0
            self._leave()
        self._next_ms = self.clock.uptime_ms() + self._pause_ms
        wait = self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        if text != self._told:
            self._told = text
            self._report("warning", "clock: " + text)
        return wait

    def _close(self):
        if self._socket:
            self._socket.close()
            self._socket = None
