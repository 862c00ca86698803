"""Judges a run by what it left behind: what the devices noted, the tables, and the history of the faults.

It shares no code with what it judges. A reading counts as made from the moment at which publish() had returned; the
device noted that outside its memory and flash. So it noted the id of each command that it began to carry out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_kit.demo.count import Count, count
from umqtt_kit.prove.evidence import out_of_order, wrong_alerts, wrong_versions


@dataclass(frozen=True)
class Verdict:
    """What a run has shown.

    count: readings made against rows stored; seen: how often each kind of fault came about; missed: how often it did
    not; ended: parts that ended though nobody ended them, with the reason; unanswered: commands that were not carried
    out, as "board: why"; repeated: ids of commands that were carried out twice; disordered: devices whose readings
    reached the collector in another order; alerts: those that should or should not be there; versions: those that no
    board should have run; silent: devices that did not come back.

    Not ours: reordered: devices whose readings the broker put in another order; taken: commands of a board whose client
    id another client took, and with it perhaps its session; flipped: readings that are lost to flipped bits, at most
    one for each; of_broker: whether a broker of another maker may have lost what is lost or unanswered.
    """

    count: Count
    seen: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    flipped: int = 0
    of_broker: bool = False

    @property
    def lost(self) -> int:
        """Readings lost that nothing of another maker, and no flipped bit, accounts for."""
        return 0 if self.of_broker else self.count.lost - self.flipped

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, invented or disordered, and every command was answered, and once."""
        of_commands = self.repeated or (self.unanswered and not self.of_broker)
        wrong = of_commands or self.disordered or self.alerts or self.versions or self.silent
        return not (self.lost or self.count.duplicated or self.count.not_made or wrong)


def check(
    run: Path,
    unanswered: Iterable[str] = (),
    silent: Iterable[str] = (),
    may_lose: Collection[str] = (),
    reorders: bool = False,
) -> Verdict:
    """Return the verdict on the run in this folder.

    may_lose: kinds after which its broker loses what it acknowledged; reorders: whether that repeats messages late.
    Raises GroundTruthError, and ValueError for a history that is no JSON by line.
    """
    seen: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    ended: list[str] = []
    of_device: Counter[tuple[str, str]] = Counter()
    for line in (run / "history.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "ended":
            ended.append(f"{event['part']}: {event['why']}")
        elif event["event"] == "end":
            (seen if event["seen"] else missed)[event["kind"]] += 1
            # A client that took an id may have been connected although it was not told.
            of_device[event["kind"], event["target"]] += bool(event["seen"]) or event["kind"] == "same_id"
    counted = count(run / "ground-truth", run / "tables")
    without_reply = sorted(unanswered)
    taken = [line for line in without_reply if of_device["same_id", line.partition(":")[0]]]
    begun = Counter(word for path in sorted((run / "commands").iterdir()) for word in path.read_text().split())
    flipped = {device: min(lost, of_device["flash_bit", device]) for device, lost in counted.lost_of.items()}
    # Messages that wait while their QoS changes may overtake each other (4.6 of MQTT 3.1.1: order is for one QoS).
    changed = {device for (kind, device), times in of_device.items() if times and kind in ("settings", "flash_bit")}
    undated = {device for (kind, device), times in of_device.items() if times and kind == "board_clock"}
    undated |= {"*"} if "collector_clock" in seen else set()
    disordered = sorted(set(out_of_order(run / "tables")) - changed)
    return Verdict(
        counted,
        dict(sorted(seen.items())),
        dict(sorted(missed.items())),
        ended,
        [line for line in without_reply if line not in taken],
        [command for command, times in begun.items() if times > 1],
        [] if reorders else disordered,
        wrong_alerts(run / "tables", run / "ground-truth", undated, bool(counted.lost or counted.quarantined)),
        wrong_versions(run / "tables"),
        sorted(silent),
        disordered if reorders else [],
        taken,
        sum(flipped.values()),
        bool(set(may_lose) & seen.keys()),
    )
