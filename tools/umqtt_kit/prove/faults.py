"""The faults of a run: a plan made from a seed, before anything runs.

The same seed, length and boards give the same plan. Times are seconds since the devices began to take readings.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

NETWORK, BROKER, COLLECTOR, SPARK, BOARD = "network", "broker", "collector", "spark", "board"


@dataclass(frozen=True)
class Kind:
    """A kind of fault. target: what it breaks; seconds: shortest and longest duration; weight: how often it comes."""

    target: str
    seconds: tuple[float, float]
    what: str
    weight: int = 1


KINDS: Mapping[str, Kind] = {
    "cut": Kind(NETWORK, (0.0, 0.0), "every link is reset", 3),
    "refuse": Kind(NETWORK, (0.5, 8.0), "every link is reset, and no new one is accepted", 2),
    "blackhole": Kind(NETWORK, (0.5, 10.0), "packets vanish in both directions, and nobody is told"),
    "deaf": Kind(NETWORK, (0.5, 10.0), "nothing comes from the broker; what devices send arrives", 2),
    "mute": Kind(NETWORK, (0.5, 10.0), "nothing comes from the devices; what the broker sends arrives"),
    "dribble": Kind(NETWORK, (0.5, 5.0), "one byte at a time"),
    "slow": Kind(NETWORK, (1.0, 8.0), "a second for each round trip"),
    "cut_in_packet": Kind(NETWORK, (0.0, 0.0), "every link is reset; the next ones die after some bytes", 3),
    "power": Kind(BOARD, (0.0, 4.0), "its power is cut, at any moment", 3),
    "power_in_flash": Kind(BOARD, (2.0, 8.0), "its power is cut in a program or erase of its flash, done in part", 4),
    "board_stops": Kind(BOARD, (0.5, 5.0), "its processor stands still (SIGSTOP)"),
    "settings": Kind(BOARD, (0.0, 2.0), "its power is cut; it boots with other settings, its messages waiting", 2),
    "board_clock": Kind(BOARD, (1.0, 8.0), "its clock is hours or days ahead or behind"),
    "flash_bit": Kind(BOARD, (0.0, 2.0), "its power is cut; a bit of a message in its flash is flipped"),
    "update": Kind(
        BOARD, (8.0, 16.0), "an update is ordered: one that works, one that does not start, or one unsigned"
    ),
    "burst": Kind(BOARD, (0.0, 0.0), "a burst of commands to it, at QoS 0, 1 or 2"),
    "same_id": Kind(BOARD, (2.0, 6.0), "another client takes its client id again and again"),
    "broker_dies": Kind(BROKER, (0.0, 4.0), "SIGKILL", 3),
    "broker_stops": Kind(BROKER, (0.5, 6.0), "SIGSTOP"),
    "broker_has_no_files": Kind(BROKER, (0.5, 4.0), "it can open no file and accept no link"),
    "broker_disk_full": Kind(BROKER, (0.5, 4.0), "no file of it can grow"),
    "broker_starts_full": Kind(BROKER, (1.0, 5.0), "SIGKILL, and no file of it can grow from its start on"),
    "broker_power": Kind(BROKER, (0.0, 4.0), "SIGKILL; pages of its files that were not synced are the old ones", 2),
    "broker_clock": Kind(BROKER, (1.0, 8.0), "its clock is hours or days ahead or behind"),
    "collector_dies": Kind(COLLECTOR, (0.0, 4.0), "SIGKILL", 3),
    "collector_stops": Kind(COLLECTOR, (0.5, 6.0), "SIGSTOP"),
    "collector_disk_full": Kind(COLLECTOR, (0.5, 4.0), "no file of it can grow"),
    "collector_starts_full": Kind(COLLECTOR, (1.0, 5.0), "SIGKILL, and no file of it can grow from its start on"),
    "collector_power": Kind(
        COLLECTOR, (0.0, 4.0), "SIGKILL; pages of its files that were not synced are the old ones", 2
    ),
    "collector_clock": Kind(COLLECTOR, (1.0, 8.0), "its clock is hours or days ahead or behind"),
    "spool_bit": Kind(COLLECTOR, (1.0, 5.0), "a bit of the spool is flipped, until a copy is put back"),
    "spark_dies": Kind(SPARK, (0.0, 3.0), "SIGKILL for the driver and its Java", 2),
    "java_dies": Kind(SPARK, (0.0, 0.0), "SIGKILL for Spark's Java alone"),
    "worker_dies": Kind(SPARK, (0.0, 0.0), "SIGKILL for a Python worker of Spark"),
    "spark_clock": Kind(SPARK, (1.0, 8.0), "its clock is hours or days ahead or behind"),
    "spark_bit": Kind(
        SPARK, (0.0, 3.0), "SIGKILL for the driver and its Java; a bit of its set of readings is flipped"
    ),
    "spark_stops": Kind(SPARK, (0.5, 6.0), "SIGSTOP for all of Spark"),
}
# Seconds between the faults of one target, drawn evenly. Clients wait longer after each attempt that failed, and Spark
# takes longest to come back.
_PAUSES: Mapping[str, tuple[float, float]] = {
    NETWORK: (2.0, 10.0),
    BOARD: (2.0, 8.0),
    BROKER: (2.0, 10.0),
    COLLECTOR: (2.0, 10.0),
    SPARK: (5.0, 20.0),
}


@dataclass(frozen=True)
class Fault:
    """A planned fault. number: its place in the plan; target: part or board id; draw: chooses its details, 0 to 1."""

    number: int
    at_s: float
    for_s: float
    kind: str
    target: str
    draw: float = 0.0


def faults_of(seed: int, seconds: float, boards: Sequence[str], without: Collection[str] = ()) -> list[Fault]:
    """Return the faults of a seed, by time. without: kinds that cannot be had here.

    Faults of one target follow one another; those of different targets overlap freely. All have ended by `seconds`.
    """
    found: list[Fault] = []
    targets = [NETWORK, BROKER, COLLECTOR, SPARK, *boards]
    for target in targets:
        # Each target has its own numbers, so that one more board changes nothing for the others.
        rng = random.Random(f"{seed}/{target}")
        place = BOARD if target in boards else target
        kinds = [name for name, kind in KINDS.items() if kind.target == place and name not in without]
        weights = [KINDS[name].weight for name in kinds]
        at_s = rng.uniform(0.0, _PAUSES[place][1])
        while kinds:
            name = rng.choices(kinds, weights)[0]
            for_s = rng.uniform(*KINDS[name].seconds)
            if at_s + for_s > seconds:
                break
            found.append(Fault(0, at_s, for_s, name, target, rng.random()))
            at_s += for_s + rng.uniform(*_PAUSES[place])
    ordered = sorted(found, key=lambda fault: fault.at_s)
    return [replace(fault, number=number) for number, fault in enumerate(ordered, 1)]
