"""What differs between MicroPython and CPython, in one place.

Times in the library are milliseconds that wrap at 2**30, as `time.ticks_ms` does on a 32-bit board; a difference
taken with `ticks_diff` is right for spans up to 2**29 ms (6.2 days) on every port.
"""

try:
    from gc import collect
    from select import poll
    from sys import print_exception
    from time import ticks_diff, ticks_ms

    from micropython import const

    try:
        from socket import getaddrinfo
        from socket import socket as Socket
    except ImportError:
        # A board without a network: the program brings its own transport.
        Socket = getaddrinfo = None
    Progress = None  # a board's system takes a few KB, and does not tell what it has sent
except ImportError:
    from ._host import Progress, Socket, collect, const, getaddrinfo, poll, print_exception, ticks_diff, ticks_ms

__all__ = (
    "Progress", "Socket", "collect", "const", "getaddrinfo", "load", "poll", "print_exception", "ticks_diff",
    "ticks_ms",
)  # fmt: skip

TICKS_MASK = const(0x3FFFFFFF)  # times are taken modulo 2**30 ms
NEVER = const(0x1FFFFFFF)  # ms: the largest result of ticks_diff()


def load(name):
    """Returns the module of this package with that name, loaded on first use: a board pays only for what it uses.

    Raises ImportError if the module is not installed.
    """
    return __import__("umqtt_robust." + name, None, None, name)


if ticks_diff(0, 0x3FFFFFFF) != 1:  # the port's own has another period: 2**62 on a 64-bit host

    def ticks_diff(end, start):
        """Returns `end - start` in ms, between -2**29 and 2**29 - 1."""
        # The highest of the 30 bits becomes the sign. Every intermediate value fits a 31-bit small integer, so nothing
        # is allocated.
        return ((end - start & 0x3FFFFFFF) ^ 0x20000000) - 0x20000000
