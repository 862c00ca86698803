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
from struct import unpack_from

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
# Unix seconds of 1900-01-01 and 2036-02-07T06:28:16, when the 32 bits of NTP's seconds wrap (RFC 5905, 6).
_ERA_0 = -2_208_988_800
_ERA_1 = 2_085_978_496

# 2000-01-01T00:00:00Z in Unix seconds, the epoch of some ports.
_EPOCH_2000 = 946_684_800

_VERSION_4_CLIENT = 0x23
_MODE_SERVER = 4
_ALARM = 3


class NtpError(ValueError):
    """An answer that must not be trusted.

    final: True if the server asks for no more requests now (a kiss-o'-death); denied: for ever.
    """

    def __init__(self, text, final=False, denied=False):
        super().__init__(text)
        self.final = final
        self.denied = denied


class Ntp:
    """An SNTP client. host: "name" or "name:port"; wifi: its `connected` is True if there is a network;
    report(level, text): of a log; rtc: machine.RTC, the board's own calendar, or None. Counters: requests, answers.
    """

    def __init__(self, clock, host, wifi, report, rtc=None):
        self._clock = clock
        self._host, _, port = host.partition(":") if host.count(":") == 1 else (host, "", "")
        self._port = int(port) if port else _PORT
        self._wifi = wifi
        self._report = report
        self._rtc = rtc
        self._address = None
        self._socket = None
        self._lookup = None
        self._turn = 0  # which of the name's addresses is asked
        self._alone = True  # it has no other one
        self._denied = []
        self._unfound = 0  # look-ups in a row
        self._next_ms = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._silent = 0
        self._told = None
        self.requests = 0
        self.answers = 0

    def step(self):
        """Do a little of the work. Returns the milliseconds until there is more to do."""
        now = self._clock.uptime_ms()
        if self._socket:
            return self._look(now)
        if now < self._next_ms:
            return self._next_ms - now
        if not self._wifi.connected:
            return _LOOK_MS * 10
        try:
            if not self._find():
                return _LOOK_MS * 10
            self._ask()
        except OSError as error:
            # This includes a name that was not found; on some ports the only argument is then a text.
            if self._address:
                self._leave()
            else:
                self._unfound += 1
            return self._failed("%s: %r" % (self._host, error))
        return _LOOK_MS

    def _find(self):
        # Returns False while the name is being looked up.
        if self._address is None:
            host = self._host
            servers = self._wifi.name_servers()
            if servers and not self._lookup:
                from app.names import Lookup, is_name, is_ports_turn

                if is_name(host) and not is_ports_turn(self._unfound):
                    self._lookup = Lookup(host, servers, self._clock.uptime_ms)
            texts = [host]
            if self._lookup:
                texts = self._lookup.step()
                if not texts:
                    return False
            found = []
            for text in texts:
                for entry in socket.getaddrinfo(text, self._port, 0, socket.SOCK_DGRAM):
                    if entry[-1] not in self._denied:
                        found.append(entry)
            self._end_lookup()
            forget("names")  # seldom needed again: the address is kept
            self._unfound = 0
            if not found:
                self._pause_ms = _LONGEST_PAUSE_MS
                raise OSError("each of its servers denies its service")
            self._alone = len(found) == 1
            self._address = found[self._turn % len(found)]
        return True

    def _end_lookup(self):
        if self._lookup:
            self._lookup.close()
            self._lookup = None

    def _ask(self):
        # Sent in place of our transmit time; the server returns it, which proves that it has seen this request.
        self._nonce = os.urandom(8)
        self._socket = socket.socket(self._address[0], socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.requests += 1
        self._asked_at = self._clock.uptime_ms()
        self._socket.sendto(bytes([_VERSION_4_CLIENT]) + bytes(39) + self._nonce, self._address[-1])

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
            return self._failed("%s: no answer: does it serve time, and may the board reach it?" % self._host)
        try:
            unix_ms = decode(data) + (now - self._asked_at) // 2
            step = self._clock.synchronised(unix_ms)
        except NtpError as error:
            if error.denied:
                self._denied.append(self._address[-1])
            if error.final and self._alone:
                self._pause_ms = _LONGEST_PAUSE_MS
            self._leave()
            return self._failed("%s: %s" % (self._host, error))
        except ValueError as error:
            return self._failed("%s: %s" % (self._host, error))
        self._close()
        self.answers += 1
        self._silent = 0
        self._told = None
        self._pause_ms = _FIRST_PAUSE_MS
        self._next_ms = now + _PERIOD_MS + os.urandom(1)[0] * 1000
        if step is None:
            self._report("info", "clock: set by %s" % self._host)
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
        self._turn += 1
        self._address = None

    def _failed(self, text):
        self._close()
        self._end_lookup()
        if self._silent >= _RESOLVE_AFTER:
            self._silent = 0
            self._address = None
        self._next_ms = self._clock.uptime_ms() + self._pause_ms
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


def set_calendar(rtc, gmtime, unix_ms):
    """Set machine.RTC to a time, for users of the board's calendar such as TLS, which checks certificate dates.

    gmtime: of module time; its seconds count from 1970 or 2000, depending on the port. Raises OSError.
    """
    seconds = unix_ms // 1000
    if gmtime(0)[0] == 2000:
        seconds -= _EPOCH_2000
    year, month, day, hour, minute, second, weekday = gmtime(seconds)[:7]
    rtc.datetime((year, month, day, weekday, hour, minute, second, 0))


def decode(data):
    """Return the Unix milliseconds at which a server sent this answer (bytes, at least 48). Raises NtpError."""
    if data[0] & 7 != _MODE_SERVER:
        raise NtpError("an answer in mode %d" % (data[0] & 7))
    if data[1] == 0:
        # A kiss-o'-death; its four letters say why (RFC 5905, 7.4).
        code = "".join([chr(b) for b in data[12:16] if 32 < b < 127])
        raise NtpError("it asks not to be asked: " + code, True, code in ("DENY", "RSTR"))
    if data[0] >> 6 == _ALARM or data[1] > 15:
        raise NtpError("the server is not synchronised itself")
    seconds, fraction = unpack_from(">II", data, 40)
    if not seconds and not fraction:
        raise NtpError("an answer without a time")
    # The top bit of the seconds is set until 2036, and then clear for 68 years.
    seconds += _ERA_0 if seconds >= 0x80000000 else _ERA_1
    return seconds * 1000 + (fraction * 1000 >> 32)
