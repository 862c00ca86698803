"""A run: load, kills at random moments, then the count.

Runs share a chain of processes and its folder for a while, so that the pipeline is started again only where it was
killed: each run continues from the state that the previous ones left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from object_store import ObjectStore
from spark_helpers import eventually_in_spark

from spark_ingest.gold import STAGES
from spark_ingest.pipeline.write import batch

from . import kinds as payloads
from .chain import SPARK_KINDS, Chain
from .fleet import Fleet
from .flips import Flips
from .oracle import Oracle, Tally, durable_position, is_read, read_spool
from .publisher import Publisher

_PUBLISHERS = 2
_RATE = 200.0
# Kills of collector and broker in a run; Spark is killed only once, since it takes seconds to come back.
_QUICK_KILLS = ("collector", "broker", "collector")
_PAUSE_S = (0.05, 0.7)
_GOLD_STAGES = [(stage, 1) for stage in STAGES]
# The pipeline kills itself at one of its stages, so that all dangerous moments are covered.
STAGE = "stage"
# What part of Spark is killed, run by run. After a worker's death the pipeline may survive, so no death at a stage
# follows.
KINDS = (STAGE, "driver java", STAGE, "driver python", "worker")
# A master with which Spark's executors are separate processes.
CLUSTER = "local-cluster[2,1,1024]"
_STALLED_S = 120.0
# The share of chains whose publishers send payloads of other kinds and sizes.
_WITH_KINDS = 0.7
# The share of chains with flipped bits.
_WITH_FLIPS = 0.5
# The share of chains whose collector's clock is wrong at times, and by how much, in seconds.
_WITH_WRONG_CLOCK = 0.5
_CLOCK_SHIFTS = (0, -40 * 60, 40 * 60)


class Run:
    """Runs over one chain. The first run starts the chain's broker, collector and pipeline.

    tally: the counts of all runs of this chain.
    shares: the share of each kind of payload in the publishers' readings.
    """

    def __init__(self, chain: Chain, seed: object, tally: Tally, first_kind: str, shares: Mapping[str, float]) -> None:
        self._chain = chain
        self._rng = random.Random(f"{seed}/kills")
        self._tally = tally
        self._is_clock_right = chain.clock_shifts == (0,)
        chain.start_pipeline(die_at=self.stage() if first_kind == STAGE else None)  # first: it takes longest
        chain.start_broker()
        chain.start_collector()
        chain.await_subscribed()
        fleets = [Fleet(f"p{number}", seed, shares=shares) for number in range(_PUBLISHERS)]
        self._publishers = [
            Publisher(fleet, chain.port, f"publisher-{number}", _RATE) for number, fleet in enumerate(fleets)
        ]
        for publisher in self._publishers:
            publisher.start()

    def close(self) -> None:
        """End the publishers."""
        for publisher in self._publishers:
            publisher.close()

    def one(self, spark_kind: str, following: str) -> None:
        """Make one run, with a kill of `spark_kind` among the others.

        following: the kind of the next run's kill, or "".
        """
        chain, rng = self._chain, self._rng
        kinds = [*_QUICK_KILLS, spark_kind]
        rng.shuffle(kinds)
        for publisher in self._publishers:
            publisher.go.set()
        for kind in kinds:
            time.sleep(rng.uniform(*_PAUSE_S))
            if kind == STAGE:
                chain.await_death()
            elif kind in SPARK_KINDS:
                eventually_in_spark(chain.pipeline_works, "the pipeline writes micro-batches")
                time.sleep(rng.uniform(*_PAUSE_S))
            if kind == STAGE or kind in SPARK_KINDS:
                chain.next_pipeline(kind, self.stage() if following == STAGE else None)
            else:
                chain.kill(kind)
        for publisher in self._publishers:
            publisher.settle()
        self._tally.runs += 1

    def stage(self) -> tuple[str, int]:
        """Choose a stage to die at, and at which occurrence."""
        return self._rng.choice([*((stage, self._rng.randint(1, 3)) for stage in batch.STAGES), *_GOLD_STAGES])

    def settle(self) -> None:
        """Wait until spool and tables have everything, or nothing more comes; then end all processes cleanly."""
        chain = self._chain
        # The clock is right again, so a device that sends now is no longer offline.
        chain.clock_shifts = (0,)
        chain.kill("collector")
        for publisher in self._publishers:
            publisher.fleet.roll_call()
            publisher.settle()
        wanted = {payload for publisher in self._publishers for payload in publisher.fleet.published.order}
        await_spool(chain.spool, wanted)
        chain.await_subscribed()  # a new one may have nothing to do, and no handler of SIGTERM yet
        assert chain.collector is not None
        chain.end("collector", chain.collector)
        await_tables(chain)
        assert chain.pipeline is not None
        chain.end("pipeline", chain.pipeline)
        if chain.flips is not None:
            chain.failures += chain.flips.unsaid(chain.pipeline.log.read_text(errors="replace"))
            chain.kills["bit"] += chain.flips.count

    def count(self) -> None:
        """Count what is in spool and tables."""
        chain, found = self._chain, Tally()
        chain.fetch_tables()
        published = [publisher.fleet.published for publisher in self._publishers]
        Oracle(chain.spool, chain.tables, published, found, chain.config, is_clock_right=self._is_clock_right).count()
        broken = [*chain.failures, *(publisher.failure for publisher in self._publishers if publisher.failure)]
        found.other += len(broken)
        found.failures += broken
        self._tally.add(found)
        self._tally.kills += chain.kills


def await_spool(spool: Path, wanted: set[bytes], stalled_s: float = _STALLED_S) -> None:
    """Wait until a spool contains what was acknowledged; give up if nothing has come for `stalled_s`."""
    last, since = None, time.monotonic()
    while wanted - {stored.payload for stored in read_spool(spool / "north")}:
        now = durable_position(spool)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > stalled_s:
            return  # lost: the count will show it
        time.sleep(0.1)


def await_tables(chain: Chain) -> None:
    """Wait until the pipeline has committed everything durable in the spool; start it again if it ended."""

    def is_done() -> bool:
        chain.pipeline_works()
        return is_read(chain.spool, chain.checkpoint) and chain.pipeline_is_ready()

    eventually_in_spark(is_done, "the pipeline has read the spool")


def run(
    folder: Path,
    runs: int,
    seed: object,
    *,
    masters: Sequence[str] = ("",),
    stores: Sequence[bool] = (False,),
    kinds: Sequence[str] = KINDS,
    say: Callable[[str], None] = lambda _: None,
) -> Tally:
    """Make `runs` runs, with a new chain for every round of `kinds`. `folder` is empty, and keeps what was stored.

    masters: Spark's masters, in turn; "" is a local one.
    stores: in turn, whether the tables are on an object store.
    kinds: what part of Spark is killed, run by run.
    """
    tally = Tally()
    for first in range(0, runs, len(kinds)):
        place = folder / f"chain-{first}"
        place.mkdir()
        chain_seed = f"{seed}/{first}"
        number = first // len(kinds)
        master, stored = masters[number % len(masters)], stores[number % len(stores)]
        try:
            with ObjectStore() if stored else nullcontext() as store:
                _one_chain(place, kinds[: runs - first], chain_seed, master, store, tally)
        except AssertionError as error:  # a process that does not come back, or says nothing
            tally.other += 1
            tally.failures.append(f"{place}: {error}")
        say(f"  {tally.runs} runs, {sum(tally.kills.values())} kills, {tally.messages} messages")
        if tally.failures:
            break
    return tally


def _shares(rng: random.Random) -> Mapping[str, float]:
    """Choose the kinds of payload: all that there are, or the firmware's records alone."""
    return {} if rng.random() > _WITH_KINDS else payloads.SHARES


def _one_chain(
    place: Path, kinds: Sequence[str], seed: str, master: str, store: ObjectStore | None, tally: Tally
) -> None:
    """Make a run for each of `kinds` over one chain; count at the end."""
    rng = random.Random(f"{seed}/dimensions")
    shares = _shares(rng)
    rules = payloads.rules(shares) if shares else ""
    with Chain(place, random.Random(seed), master=master, store=store, rules=rules) as chain:
        if chain.is_cluster:
            kinds = ["executor" if kind == "worker" else kind for kind in kinds]
        if rng.random() < _WITH_FLIPS:
            chain.flips = Flips(chain.checkpoint, chain.tables, rng)
        if rng.random() < _WITH_WRONG_CLOCK:
            chain.clock_shifts = _CLOCK_SHIFTS
        load = Run(chain, seed, tally, kinds[0], shares)
        try:
            for kind, following in zip(kinds, [*kinds[1:], ""], strict=True):
                load.one(kind, following)
            load.settle()
            load.count()
        finally:
            load.close()
