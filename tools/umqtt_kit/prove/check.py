"""Judges a run by what it left behind: the ground truth of the devices, the tables, and the history of the faults.

It shares no code with what it judges. A reading counts as made from the moment at which publish() had returned; the
device noted that outside its memory and flash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_kit.demo.count import Count, count


@dataclass(frozen=True)
class Verdict:
    """What a run has shown.

    count: readings made against rows stored; seen: how often each kind of fault came about; missed: how often it did
    not; ended: parts that ended though nobody ended them, with the reason; unanswered: commands that were not carried
    out, as "board: why"; taken: those of a board whose client id another client took, and with it perhaps its session.
    """

    count: Count
    seen: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled or invented, and every command was answered."""
        return self.count.complete and not self.unanswered


def check(ground_truth: Path, tables: Path, history: Path, unanswered: Iterable[str] = ()) -> Verdict:
    """Return the verdict on a run. Raises GroundTruthError, and ValueError for a history that is no JSON by line."""
    seen: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    ended: list[str] = []
    robbed: set[str] = set()
    for line in history.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "ended":
            ended.append(f"{event['part']}: {event['why']}")
        elif event["event"] == "end":
            (seen if event["seen"] else missed)[event["kind"]] += 1
            if event["kind"] == "same_id":
                robbed.add(event["target"])
    without_reply = sorted(unanswered)
    taken = [line for line in without_reply if line.partition(":")[0] in robbed]
    return Verdict(
        count(ground_truth, tables),
        dict(sorted(seen.items())),
        dict(sorted(missed.items())),
        ended,
        [line for line in without_reply if line not in taken],
        taken,
    )
