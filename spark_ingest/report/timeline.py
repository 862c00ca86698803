"""Equal steps of time, which the points of a chart stand for."""

from dataclasses import dataclass

import numpy as np

US = 1_000_000
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True)
class Timeline:
    """A timeline of `count` steps of `step_s` seconds, from `start_s` (Unix seconds) on."""

    start_s: int
    step_s: int
    count: int

    @classmethod
    def between(cls, start_us: int, end_us: int, *, finest_s: int, most: int) -> "Timeline":
        """Return the timeline from start to end with at most `most` steps, as fine as `finest_s` seconds allow.

        Steps begin at multiples of their length in Unix time, so that a newer reading does not move other points.
        """
        first_s, last_s = start_us // US, max(start_us, end_us - 1) // US
        for step_s in (step for step in _STEPS_S if step >= finest_s):
            begin = first_s // step_s
            count = last_s // step_s - begin + 1
            if count <= most:
                break
        else:
            # Longer than anybody keeps telemetry: show only the newest steps.
            step_s = _STEPS_S[-1]
            begin = last_s // step_s - most + 1
            count = most
        return cls(begin * step_s, step_s, count)

    def index(self, times_us: np.ndarray) -> np.ndarray:
        """Return the step of each time; it is below 0, or `count` or more, for times outside the timeline."""
        return (times_us // US - self.start_s) // self.step_s

    def totals(self, times_us: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the sum of the values in each step."""
        at = self.index(times_us)
        inside = (at >= 0) & (at < self.count)
        return np.bincount(at[inside], weights=values[inside], minlength=self.count)

    def seconds(self, start_us: int, end_us: int) -> np.ndarray:
        """Return the seconds of each step between the two times; for a step outside them, its full length."""
        begin = self.start_s + self.step_s * np.arange(self.count)
        inside = np.minimum(begin + self.step_s, end_us / US) - np.maximum(begin, start_us / US)
        return np.where(inside > 0, inside, self.step_s)

    def as_json(self) -> dict[str, int]:
        """Return the fields under the names that the page's scripts use."""
        return {"start": self.start_s, "step": self.step_s, "count": self.count}
