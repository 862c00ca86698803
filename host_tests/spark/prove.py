"""Proves the way into the tables: `make prove-ingest`, or `python host_tests/spark/prove.py [--quick] [--json]`.

Publishers, the paired broker, the collector and Spark run under load while parts of them are killed with SIGKILL at
random moments (50 runs; quick: 2): the driver's Java and Python processes, its workers or executors, the collector,
the broker. Some readings come twice, late, in another order or without a clock, some are corrupt, some never come.
In some of the chains of processes, by the seed, messages of other makers come too, of up to 16 MB or with 50,000
metrics; a bit of the pipeline's own files is flipped while it is down; the collector's clock is wrong for a while.
Then the tables are compared with what the publishers had acknowledged. Mistakes are planted to check that each is
caught, and, if strace is installed, a trace shows that no PUBACK leaves before the fdatasync that covers its message.

Prints one JSON object last with --json: runs, kills (by kind; a flipped bit is one too), messages, lost, duplicated,
wrong (rows with other values, or never published), quarantine_wrong, bronze_wrong, gold_wrong (null: not compared),
out_of_order (in the spool, by publisher), other (laws broken in another way), not_synced (PUBACKs that left too early;
null without strace), memory_exceeded (peaks of the pipeline's Python process above docs/ingest.md#memory), controls,
controls_caught, seed, seconds. Exit code: 0, or 1 if a law was broken or a mistake not caught; then what was stored is
kept, and its folder named.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import proving
from proof import controls, memory, mistakes, runs, trace

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java

# Every fifth chain runs on a cluster.
_MASTERS = ("", "", "", "", runs.CLUSTER)
# Every other chain has its tables on an object store, which in time includes one on a cluster.
_STORES = (False, True)
_QUICK_CONTROLS = ("reads the latest progress",)


def main(arguments: list[str] | None = None) -> int:
    try:
        require_java()
    except MissingDependency as error:
        print(f"prove-ingest: {error}", file=sys.stderr)
        return error.exit_code
    more = {
        "--runs": {"type": int, "help": "how many runs"},
        "--master": {"help": f"Spark's in all runs, as {runs.CLUSTER}, whose executors are killed too"},
        "--object-store": {"action": "store_true", "help": "with the tables on an object store in all runs"},
    }
    return proving.run(_prove, "proves the way into the tables", arguments, more)


def _prove(options: argparse.Namespace, say: proving.Say) -> tuple[dict[str, object], bool]:
    seed, count = options.seed, options.runs or (2 if options.quick else 50)
    folder = Path(tempfile.mkdtemp(prefix="umqtt-prove-"))
    say(f"{count} runs in {folder}")
    masters = _MASTERS if options.master is None else (options.master,)
    stores = (True,) if options.object_store else _STORES
    tally = runs.run(folder, count, seed, masters=masters, stores=stores, say=say)
    for failure in tally.failures[:20]:
        say(f"  {failure}")
    say("planted mistakes")
    caught = controls.catch_all(folder / "controls", _cases(quick=options.quick), seed)
    not_synced = _trace(folder / "trace", seed, say)
    say("memory")
    sizes, kinds = ([4], [memory.DENSE]) if options.quick else (sorted(memory.documented()), [*memory.KINDS])
    exceeded = memory.exceeded(folder / "memory", sizes, kinds, say)
    for name, how in caught.items():
        say(f"  {name}: {how or 'NOT CAUGHT'}")
    found = {
        "runs": tally.runs,
        "kills": dict(sorted(tally.kills.items())),
        **{name: getattr(tally, name) for name in ("messages", *tally.COUNTS)},
        "not_synced": not_synced,
        "memory_exceeded": len(exceeded),
        "controls": len(caught),
        "controls_caught": sum(1 for how in caught.values() if how),
    }
    is_broken = bool(tally.broken or not_synced or exceeded or found["controls_caught"] != found["controls"])
    if is_broken:
        say(f"what was stored is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return found, is_broken


def _cases(*, quick: bool) -> dict[str, controls.Case]:
    """Return every control, by name; those with Spark first, since they take longest."""
    cases: dict[str, controls.Case] = {
        name: partial(controls.pipeline, control)
        for name, control in controls.PIPELINE_CONTROLS.items()
        if not quick or name in _QUICK_CONTROLS
    }
    cases["decodes a micro-batch at once"] = partial(memory.control, mistakes.DECODES_AT_ONCE)
    cases |= {name: partial(controls.collector, mistake) for name, mistake in controls.COLLECTOR_CONTROLS.items()}
    if shutil.which("strace"):
        cases["traced: acknowledges before it is durable"] = partial(controls.traced, mistakes.ACKNOWLEDGES_EARLY)
        cases["traced: does not sync"] = partial(controls.traced, mistakes.DOES_NOT_SYNC)
    return cases


def _trace(folder: Path, seed: int, say: proving.Say) -> int | None:
    if shutil.which("strace") is None:
        say("no trace: strace is not installed — apt install strace")
        return None
    folder.mkdir()
    law = trace.trace(folder, seed)
    say(f"trace: {law.acknowledged} PUBACKs")
    for violation in law.violations[:20]:
        say(f"  {violation}")
    return len(law.violations)


if __name__ == "__main__":
    sys.exit(main())
