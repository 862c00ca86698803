"""Equal steps of time: what a chart's points stand for."""

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
    """`count` steps of `step_s` seconds from `start_s`, Unix seconds."""

    start_s: int
    step_s: int
    count: int

    @classmethod
    def between(cls, start_us: int, end_us: int, *, finest_s: int, most: int) -> "Timeline":
        """The finest steps of at least `finest_s` that reach from start to end with at most `most` of them.

        They begin at whole steps of Unix time, so that the newest reading moves no other point.
        """
        first_s, last_s = start_us // US, max(start_us, end_us - 1) // US
        for step_s in (step for step in _STEPS_S if step >= finest_s):
            begin = first_s // step_s
            count = last_s // step_s - begin + 1
            if count <= most:
                break
        else:
            # Longer than anybody keeps telemetry: the newest steps are shown.
            step_s = _STEPS_S[-1]
            begin = last_s // step_s - most + 1
            count = most
        return cls(begin * step_s, step_s, count)

    def index(self, times_us: np.ndarray) -> np.ndarray:
        """The step of each time; outside of the timeline it is below 0 or not below `count`."""
        return (times_us // US - self.start_s) // self.step_s

    def totals(self, times_us: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The sum of the values in each step."""
        at = self.index(times_us)
        inside = (at >= 0) & (at < self.count)
        return np.bincount(at[inside], weights=values[inside], minlength=self.count)

    def seconds(self, start_us: int, end_us: int) -> np.ndarray:
        """Seconds of each step that lie between the two times; where none do, the whole step's."""
        begin = self.start_s + self.step_s * np.arange(self.count)
        inside = np.minimum(begin + self.step_s, end_us / US) - np.maximum(begin, start_us / US)
        return np.where(inside > 0, inside, self.step_s)

    def as_json(self) -> dict[str, int]:
        """Named as the page's scripts name them."""
        return {"start": self.start_s, "step": self.step_s, "count": self.count}
