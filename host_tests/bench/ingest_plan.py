"""What the ingestion's bench compares: cases, peers and goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench_rows import LEAST_RATIO, MOST_OF_OURS, MOST_RATIO, Goal, Row

# The peers, all written for the bench (ingest_peers/, ingest_spark.py).
PAHO_DURABLE = "paho, manual acknowledgement, durable"
PAHO_PARQUET = "paho to Parquet, not durable"
MQ_BRIDGE = "mq-bridge to Parquet, durable"
CEILING = "Arrow source that decodes nothing"
SPARK_STREAM = "Spark JSON stream, dropDuplicatesWithinWatermark, Parquet"
WITHOUT = "without deduplication"
FEW_DEVICES = "1,000 devices"
WIRE = "PUBLISH bytes of the wire"

COLLECTOR = "collector, durable: msg/s"
LIVE = "live, broker to silver: msg/s"
START = "start to ready: s"
BACKFILL = "backfill into bronze and silver, 1,000 devices: rows/s"
READ = "warm read of the spool: msg/s"
P50, P95 = "reading made to row visible at 1,000/s: p50 s", "reading made to row visible at 1,000/s: p95 s"
BULK_BYTES, TRICKLE_BYTES = "spool bytes, backlog", "spool bytes, 1,000 msg/s"
DEDUP = "silver, {devices:,} devices: rows/s"
COST = "cost a reading, {devices:,} devices: us"

GOLD_BYTES = "gold, {devices:,} devices, {share:.0%} of them sent: bytes an update"
GOLD_FILES = "gold, {devices:,} devices, {share:.0%} of them sent: files an update"
GOLD_CPU = "gold, {devices:,} devices, {share:.0%} of them sent: s of CPU an update"
GOLD_SAVED = "gold, {devices:,} devices, {boots} boots each: bytes of the state"
GOLD_MEMORY = "gold, {devices:,} devices, {boots} boots each: bytes in memory"
GOLD_OLD_BYTES = "gold, {devices:,} devices, {boots} boots each, 1% of them sent: bytes an update"
GOLD_OLD_CPU = "gold, {devices:,} devices, {boots} boots each, 1% of them sent: s of CPU an update"

DECODE_MAPPED = "JSON of other devices, named metrics: us of CPU a reading"
DECODE_DEFAULT = "JSON of other devices, every number: us of CPU a reading"
OWN_FORMAT = "our own format"


def goal_of(case: str, peer: str) -> Goal | None:
    """Return the goal of a row; None for a figure without a goal."""
    return _GOALS.get((case, peer))


_GOALS = {
    (COLLECTOR, PAHO_DURABLE): Goal(10, LEAST_RATIO),
    (LIVE, PAHO_PARQUET): Goal(1.2, LEAST_RATIO),
    (LIVE, MQ_BRIDGE): Goal(1.0, LEAST_RATIO),
    (START, ""): Goal(5.0, MOST_OF_OURS),
    (BACKFILL, SPARK_STREAM): Goal(7.5, LEAST_RATIO),
    (READ, CEILING): Goal(0.5, LEAST_RATIO),
    (P50, ""): Goal(0.25, MOST_OF_OURS),
    (P95, ""): Goal(0.5, MOST_OF_OURS),
    (DECODE_MAPPED, OWN_FORMAT): Goal(1.5, MOST_RATIO),
    (BULK_BYTES, WIRE): Goal(1.05, MOST_RATIO),
    (TRICKLE_BYTES, WIRE): Goal(1.05, MOST_RATIO),
    **{(DEDUP.format(devices=devices), WITHOUT): Goal(0.85, LEAST_RATIO) for devices in (10_000, 100_000)},
    **{(COST.format(devices=devices), FEW_DEVICES): Goal(1.1, MOST_RATIO) for devices in (10_000, 100_000)},
}


@dataclass(frozen=True)
class Scale:
    """How much is measured: numbers of messages, except repetitions and seconds."""

    repetitions: int
    collected: int
    collected_by_peer: int
    live: int
    read: int
    latency_s: float
    batch: int
    batches: int
    devices: Sequence[int]


FULL = Scale(5, 400_000, 60_000, 300_000, 1_000_000, 20.0, 200_000, 4, (1_000, 10_000, 100_000))
QUICK = Scale(1, 150_000, 20_000, 60_000, 200_000, 4.0, 30_000, 2, (1_000, 10_000))
# Enough to see that everything runs and what it prints.
MINIMAL = Scale(1, 20_000, 1_000, 2_000, 4_000, 1.0, 1_000, 2, (100, 1_000))


def row(case: str, ours: float, peer: float | None = None, peer_name: str = "") -> Row:
    """Return a row with its goal."""
    return Row(case, ours, peer, peer_name, goal_of(case, peer_name))
