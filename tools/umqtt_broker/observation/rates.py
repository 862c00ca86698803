"""Averages and a short history, from counters read at intervals."""

import math
from collections import deque
from collections.abc import Callable, Mapping

# Minutes over which mosquitto's load topics average.
WINDOWS = (1, 5, 15)


class LoadAverage:
    """Exponentially damped events per minute over the last 1, 5 and 15 minutes, as mosquitto computes them."""

    __slots__ = ("_averages", "_last")

    def __init__(self, count: int) -> None:
        self._last = count
        self._averages = [0.0] * len(WINDOWS)

    def update(self, count: int, seconds: float) -> list[float]:
        """Add the counter's value, `seconds` after the previous one. Returns the averages, shortest window first."""
        if seconds > 0:
            per_minute = (count - self._last) * 60 / seconds
            for index, minutes in enumerate(WINDOWS):
                kept = math.exp(-seconds / (60 * minutes))
                self._averages[index] = self._averages[index] * kept + per_minute * (1 - kept)
            self._last = count
        return list(self._averages)


class History:
    """The rates of the last minutes, one sample a second.

    read: returns rising counters by name; a rate is a counter's growth per second. now: a monotonic time in seconds.
    samples: how many are kept; the oldest is dropped for a new one.
    """

    def __init__(self, read: Callable[[], Mapping[str, int]], now: float, samples: int = 300) -> None:
        self._read = read
        self._last = dict(read())
        self._last_at = now
        self._columns: dict[str, deque[float]] = {name: deque(maxlen=samples) for name in self._last}

    def sample(self, now: float) -> None:
        """Add a sample. now: a monotonic time in seconds."""
        seconds = now - self._last_at
        if seconds <= 0:
            return
        counters = dict(self._read())
        for name, column in self._columns.items():
            column.append(round((counters[name] - self._last[name]) / seconds, 1))
        self._last, self._last_at = counters, now

    def rates(self) -> dict[str, float]:
        """Return the latest sample, zeros before the first."""
        return {name: column[-1] if column else 0.0 for name, column in self._columns.items()}

    def columns(self, count: int) -> dict[str, list[float]]:
        """Return up to `count` latest samples of each rate, oldest first."""
        return {name: list(column)[-count:] for name, column in self._columns.items()}


class ClientRates:
    """The message rates of single clients, between one request for them and the next.

    It keeps a client's counters at the last request, for at most `clients` clients.
    """

    def __init__(self, clients: int = 1000) -> None:
        self._clients = clients
        # By client: time, messages in and messages out of the last sample; then the rates that it gave.
        self._seen: dict[bytes, tuple[float, int, int, float, float]] = {}

    def rates(self, client_id: bytes, connected_at: float, now: float, received: int, sent: int) -> tuple[float, float]:
        """Return the messages per second that a client sent to the broker and got from it, since the last request.

        The first time, since it connected. A request within a second after the last gets the same rates again.
        connected_at, now: the event loop's times. received, sent: the client's counters now.
        """
        seen = self._seen.pop(client_id, None)
        if seen is None or seen[0] <= connected_at:
            seen = (connected_at, 0, 0, 0.0, 0.0)
        seconds = now - seen[0]
        if seconds >= 1:
            seen = (now, received, sent, (received - seen[1]) / seconds, (sent - seen[2]) / seconds)
        self._seen[client_id] = seen
        while len(self._seen) > self._clients:
            self._seen.pop(next(iter(self._seen)))
        return round(seen[3], 1), round(seen[4], 1)
