"""The `ntptime` module that is frozen into esp32 and rp2 images, with the host as its time server.

Hook "ntp": false: no answer comes (ETIMEDOUT after `timeout` seconds on a board, at once here); "name": the server's
name cannot be resolved; a number: the server answers this Unix second. A board that plays esp32 or rp2 must have
joined a network.
"""

import errno

from _virtual import IS_RP2, PLATFORM, hook

host = "pool.ntp.org"
timeout = 1


def time():
    """Return the seconds since this port's epoch: 2000 on esp32, 1970 elsewhere."""
    import time as clock

    import network
    import utime

    answer = hook("ntp")
    away = PLATFORM != "unix" and not network.WLAN(network.STA_IF).isconnected()
    if answer == "name" or away:
        raise OSError(-2 if IS_RP2 else -202)  # getaddrinfo() errors: lwIP's number, and IDF's
    if answer is False:
        raise OSError(errno.ETIMEDOUT)
    unix_s = int(utime.time() if answer is None else answer)
    return unix_s - getattr(clock, "EPOCH_UNIX_S", 0)


def settime():
    import time as clock

    seconds = time()
    # On a board that plays no port the clock is the host's, which is already right.
    if hasattr(clock, "set_unix_s"):
        import machine

        year, month, day, hour, minute, second, weekday, _ = clock.gmtime(seconds)[:8]
        machine.RTC().datetime((year, month, day, weekday + 1, hour, minute, second, 0))
