"""Reads the answer of a time server, and sets the board's calendar. Loaded for a moment."""

from struct import unpack_from

# Unix seconds of 1900-01-01 and 2036-02-07T06:28:16, when the 32 bits of NTP's seconds wrap (RFC 5905, 6).
_ERA_0 = -2_208_988_800
_ERA_1 = 2_085_978_496

# 2000-01-01T00:00:00Z in Unix seconds, the epoch of some ports.
_EPOCH_2000 = 946_684_800

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
