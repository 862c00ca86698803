"""Controls of the proof: each plants a mistake in a chain and kills where it matters; the counts must catch it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from own_session import ended_at, run_pipeline, tasks_here
from spark_helpers import eventually_in_spark, publish_packet

from spark_ingest.spool.writer import Spool

from . import kinds, mistakes, trace
from .chain import Chain
from .fleet import Fleet
from .flips import Flips
from .oracle import Oracle, Tally
from .publisher import Publisher
from .runs import await_spool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Takes an empty folder and a seed; returns descriptions of the broken laws.
Case = Callable[[Path, object], list[str]]

# A mistake that shows only sometimes must show in one of this many runs.
_TRIES = 3
_KILLS = ("collector",) * 4
_STALLED_S = 1.5
_RATE = 1500.0
_GROUPS, _GROUP = 4, 100


class PipelineControl(NamedTuple):
    """A mistake of the pipeline, and the stage at whose N-th occurrence it is killed.

    shares: the kinds of payload that the fleet publishes, as in :class:`Fleet`.
    flips: whether a bit of its files is flipped after its death.
    clock_shift: by how many seconds the collector's clock is wrong for some of the messages.
    """

    mistake: str
    die_at: tuple[str, int]
    shares: Mapping[str, float] = {}
    flips: bool = False
    clock_shift: int = 0

    @property
    def rules(self) -> str:
        """The text of `ingest.toml`, "" for none."""
        return kinds.rules(self.shares) if self.shares else ""


PIPELINE_CONTROLS = {
    "reads the latest progress": PipelineControl(mistakes.READS_LATEST_PROGRESS, ("written", 1)),
    "appends without a transaction": PipelineControl(mistakes.APPENDS_WITHOUT_TRANSACTION, ("silver committed", 2)),
    "does not deduplicate": PipelineControl(mistakes.DOES_NOT_DEDUPLICATE, ("written", 2)),
    "forgets readings that come late": PipelineControl(mistakes.FORGETS_LATE_READINGS, ("written", 2)),
    "takes another payload for a duplicate": PipelineControl(mistakes.DROPS_CONFLICTS, ("written", 2)),
    "takes gold's state as it was saved": PipelineControl(
        mistakes.GOLD_TAKES_SAVED_STATE, ("gold windows committed", 2)
    ),
    "quarantines again": PipelineControl(mistakes.QUARANTINES_AGAIN, ("quarantine committed", 2)),
    "identifies by the row in a micro-batch": PipelineControl(
        mistakes.NUMBERS_ROWS, ("silver committed", 2), {"number": 0.2}
    ),
    "loses what a node's birth says": PipelineControl(mistakes.FORGETS_BIRTHS, ("silver committed", 2), {"node": 0.2}),
    "leaves large messages out": PipelineControl(mistakes.LEAVES_LARGE_OUT, ("written", 2), {"long": 0.02}),
    "cuts dense records": PipelineControl(mistakes.CUTS_DENSE, ("written", 2), {"dense": 0.02}),
    "does not check its files": PipelineControl(mistakes.IGNORES_DAMAGE, ("written", 3), flips=True),
    "believes the collector's clock": PipelineControl(mistakes.BELIEVES_CLOCK, ("written", 2), clock_shift=3600),
}
# These need no Spark, so they are quick: their effect is visible in the spool.
COLLECTOR_CONTROLS = {
    "acknowledges before it is durable": mistakes.ACKNOWLEDGES_EARLY,
    "lets the broker forget its session": mistakes.CLEAN_SESSION,
}


def pipeline(control: PipelineControl, folder: Path, seed: object) -> list[str]:
    """Fill a spool, kill the pipeline at its stage, start it again; return the laws that were broken."""
    fleet = Fleet("made", seed, shares=control.shares)
    _fill(folder / "spool" / "north", fleet, random.Random(f"{seed}/groups"), control.clock_shift)
    tally = Tally()
    with Chain(folder, random.Random(f"{seed}/chain"), mistake=control.mistake, rules=control.rules) as chain:
        more = ("--once", "--max-rows", _GROUP)
        chain.start_pipeline(*more, die_at=control.die_at)
        chain.await_death()
        flips = Flips(chain.checkpoint, chain.tables, random.Random(f"{seed}/flips"))
        if control.flips:
            flips.flip()
        chain.start_pipeline(*more)
        again = chain.pipeline
        assert again is not None
        eventually_in_spark(lambda: again.code() is not None, "the pipeline has read everything")
        if again.code():
            return [f"the pipeline ended with {again.code()}: {again.told()[-300:]}"]
        tally.failures += flips.unsaid(again.told())
    is_right = not control.clock_shift
    Oracle(chain.spool, chain.tables, [fleet.published], tally, chain.config, is_clock_right=is_right).count()
    return tally.failures


def pipeline_in_session(spark: SparkSession, control: PipelineControl, folder: Path, seed: object) -> list[str]:
    """Do what pipeline() does in an existing session: the micro-batch breaks off, and no process dies."""
    fleet = Fleet("made", seed, shares=control.shares)
    spool, tables = folder / "spool", folder / "tables"
    _fill(spool / "north", fleet, random.Random(f"{seed}/groups"), control.clock_shift)
    tally = Tally()
    arguments = ["--spool", spool, "--tables", tables, "--checkpoint", folder / "checkpoint"]
    arguments += ["--once", "--max-rows", _GROUP]
    config = folder / "ingest.toml" if control.rules else None
    if config is not None:
        config.write_text(control.rules)
        arguments += ["--config", config]
    with mistakes.planted(control.mistake), tasks_here():
        ended_at(spark, *control.die_at, *arguments)
        if run_pipeline(spark, *arguments):
            return ["the pipeline failed"]
    is_right = not control.clock_shift
    Oracle(spool, tables, [fleet.published], tally, config, is_clock_right=is_right).count()
    return tally.failures


def _fill(folder: Path, fleet: Fleet, rng: random.Random, clock_shift: int) -> None:
    """Write what a collector would have stored; some groups twice, as after a kill before their PUBACK.

    clock_shift: by how many seconds its clock is wrong for the first groups.
    """
    with Spool(folder) as spool:
        for number in range(_GROUPS):
            messages = [fleet.next() for _ in range(_GROUP)]
            if number + 1 == _GROUPS:
                fleet.roll_call()
                messages += fleet.rest()
            packets = [publish_packet(*message, packet_id) for packet_id, message in enumerate(messages, 1)]
            shift_ms = clock_shift * 1000 if number < _GROUPS // 2 else 0
            for _ in range(rng.choice([1, 1, 2])):
                spool.append(b"".join(packets), len(packets), time.time_ns() // 1_000_000 + shift_ms)


def collector(
    mistake: str,
    folder: Path,
    seed: object,
    kills: Sequence[str] = _KILLS,
    read: Callable[[Chain], None] | None = None,
) -> list[str]:
    """Kill the collector or the broker several times under load; return the laws that the spool then breaks.

    read: brings the spool's messages into the tables; the laws are then those of the tables too.
    """
    rng = random.Random(f"{seed}/chain")
    tally = Tally()
    with Chain(folder, rng, mistake=mistake) as chain:
        chain.start_broker()
        chain.start_collector()
        chain.await_subscribed()
        publisher = Publisher(Fleet("made", seed), chain.port, "made", _RATE)
        publisher.start()
        publisher.go.set()
        for kind in kills:
            time.sleep(rng.uniform(0.05, 0.3))
            chain.kill(kind)
            chain.await_subscribed()
        publisher.settle()
        await_spool(chain.spool, set(publisher.fleet.published.order), _STALLED_S)
        publisher.close()
        if read is not None:
            read(chain)
    oracle = Oracle(chain.spool, chain.tables, [publisher.fleet.published], tally)
    (oracle.count_spool if read is None else oracle.count)()
    return tally.failures


def traced(mistake: str, folder: Path, seed: object) -> list[str]:
    """Trace the collector; return what left it too early."""
    return trace.trace(folder, seed, mistake).violations


def catch(folder: Path, run: Case, seed: object) -> str:
    """Return the first law that a mistake broke, "" if it was not caught. `folder` is empty."""
    for attempt in range(_TRIES):
        place = folder / str(attempt)
        place.mkdir(parents=True)
        if failures := run(place, f"{seed}/{attempt}"):
            return failures[0]
    return ""


def catch_all(folder: Path, cases: dict[str, Case], seed: object, at_once: int = 2) -> dict[str, str]:
    """Run `catch` for each case; return the results by name.

    at_once: cases run in parallel, because most of a start of Spark is waiting.
    """
    with ThreadPoolExecutor(at_once) as workers:
        jobs = {name: workers.submit(catch, folder / name, run, seed) for name, run in cases.items()}
        return {name: job.result() for name, job in jobs.items()}
