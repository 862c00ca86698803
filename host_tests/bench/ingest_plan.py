"""What the ingestion's bench compares: cases, peers and goals."""

from __future__ import annotations

from dataclasses import dataclass

from bench_rows import LEAST_RATIO, MOST_OF_OURS, MOST_RATIO, Goal, Row

# The peers, all written for the bench (ingest_peers/, ingest_spark.py).
PAHO_DURABLE = "paho, manual acknowledgement, durable"
PAHO_PARQUET = "paho to Parquet, not durable"
MQ_BRIDGE = "mq-bridge to Parquet, durable"
CEILING = "Arrow source that decodes nothing"
SPARK_STREAM = "Spark JSON stream, dropDuplicatesWithinWatermark, Parquet"
WIRE = "PUBLISH bytes of the wire"

COLLECTOR = "collector, durable: msg/s"
LIVE = "live, broker to silver: msg/s"
START = "start to ready: s"
BACKFILL = "backfill into bronze and silver, 1,000 devices: rows/s"
READ = "warm read of the spool: msg/s"
P50, P95 = "reading made to row visible at 1,000/s: p50 s", "reading made to row visible at 1,000/s: p95 s"
BULK_BYTES, TRICKLE_BYTES = "spool bytes, backlog", "spool bytes, 1,000 msg/s"


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
    (BULK_BYTES, WIRE): Goal(1.05, MOST_RATIO),
    (TRICKLE_BYTES, WIRE): Goal(1.05, MOST_RATIO),
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


FULL = Scale(5, 400_000, 60_000, 300_000, 1_000_000, 20.0, 200_000, 4)
QUICK = Scale(1, 150_000, 20_000, 60_000, 200_000, 4.0, 30_000, 2)
# Enough to see that everything runs and what it prints.
MINIMAL = Scale(1, 20_000, 1_000, 2_000, 4_000, 1.0, 1_000, 2)


def row(case: str, ours: float, peer: float | None = None, peer_name: str = "") -> Row:
    """Return a row with its goal."""
    return Row(case, ours, peer, peer_name, goal_of(case, peer_name))
