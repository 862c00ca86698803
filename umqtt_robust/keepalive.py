"""When to send PINGREQ, and when the link is dead: MQTT 3.1.1, 3.1.2.10 and 4.8.

A PINGREQ is due when nothing was sent, or nothing arrived, for ping_after: the second finds a link that takes bytes
and gives none even under a steady flow at QoS 0. The link is dead when a PINGREQ is outstanding and nothing at all
arrived for ping_timeout; its clock starts when it is due, so that a link that takes no bytes is found the same way.
With the defaults that is within keep_alive of the last sign of life.

Another scheduler (asyncio, a hardware timer) can stand in for this one: an object with start() and check().
"""

from ._platform import const, ticks_diff
from .errors import InvalidArgument, LinkLost

_PINGREQ = const(0xC0)
_NEVER = const(0x1FFFFFFF)

_NO_PING = const(0)
_PING_WAITS = const(1)  # due, but there was no room to send it yet
_PING_SENT = const(2)


class KeepAlive:
    """All times in ms. keep_alive 0 switches it off."""

    def __init__(self, keep_alive, ping_after=None, ping_timeout=None):
        self.keep_alive = keep_alive
        self._ping_after = ping_after or keep_alive // 2
        self._ping_timeout = ping_timeout or min(10000, keep_alive // 2)
        if keep_alive and not 0 < self._ping_after <= keep_alive:
            raise InvalidArgument("ping_after must lie between 1 and keep_alive")
        self.start()

    def start(self):
        """A new link."""
        self._ping = _NO_PING
        self._ping_at = 0

    def answered(self):
        """PINGRESP arrived."""
        self._ping = _NO_PING

    def check(self, now, out, heard_at):
        """Queues PINGREQ in the send buffer when it is due; returns ms until the next deadline.

        heard_at: when something last arrived. Raises LinkLost.
        """
        if not self.keep_alive:
            return _NEVER
        quiet = ticks_diff(now, out.written_at)
        if self._ping == _NO_PING:
            left = self._ping_after - max(quiet, ticks_diff(now, heard_at))
            if left > 0:
                return left
            self._ping = _PING_WAITS
            self._ping_at = now
        if ticks_diff(heard_at, self._ping_at) > 0:
            self._ping_at = heard_at
        left = self._ping_timeout - ticks_diff(now, self._ping_at)
        if left <= 0:
            raise LinkLost("nothing arrived within ping_timeout of PINGREQ")
        if quiet >= 2 * self.keep_alive:
            # Things arrive, but nothing could be written: the broker will give up on us.
            raise LinkLost("nothing could be written for twice the keep-alive")
        if self._ping == _PING_WAITS and out.put_empty(_PINGREQ):
            self._ping = _PING_SENT
        return left
