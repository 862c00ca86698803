"""Proves the broker: `make prove-broker`, or `python host_tests/broker/prove.py [--quick] [--json] [--seed N]`.

Kills the broker with SIGKILL under load (50 times with clients of MQTT 3.1.1, as often with those of MQTT 5; quick:
10) and counts what was acknowledged, checks that planted mistakes are caught, and, if strace is installed, checks in a
trace of each version that nothing is sent before the fdatasync that covers it; if redis-server is installed, lets two
brokers on one Redis or Valkey, and the network between them, fail in every way (50 runs; quick: 3), each with its own
seed; attacks the broker, and mosquitto beside it, and measures what others notice (attacks.py). Prints one JSON object
last with --json: runs, messages, lost, duplicated, out_of_order, other (laws broken in another way), not_synced
(packets that left too early; null without strace), takeovers, takeover_p95_s (seconds without a broker that 95 of 100
takeovers stay below; at most 5), controls, controls_caught, attacks, attacks_hurt (those that others noticed), seed,
seconds. Exit code: 0, or 1 if a law was broken, a mistake not caught, a takeover too slow or an attack hurt.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attacks
import broker_mistakes
import failover_law
import kill_law
import proving
import trace_load
from law_peer import LEVELS
from umqtt_testkit.redis_server import find_redis

# Kills in one control, and seeds it is tried with: a mistake that shows only sometimes must show in one of them.
_CONTROL_KILLS = 4
_CONTROL_TRIES = 3

KILL_CONTROLS = {
    "acknowledges before the commit": broker_mistakes.ACKNOWLEDGES_EARLY,
    "releases what was held out of turn": broker_mistakes.RELEASES_OUT_OF_TURN,
    "loses the window on takeover": broker_mistakes.LOSES_THE_WINDOW,
    "forgets PUBREC": broker_mistakes.FORGETS_PUBREC,
    "forgets incoming identifiers": broker_mistakes.FORGETS_INCOMING_IDENTIFIERS,
    "turns the recovered queue round": broker_mistakes.SHUFFLES_PAGES,
    "drops retained messages": broker_mistakes.DROPS_RETAINED,
    "forgets the wills of clients connected at the crash": broker_mistakes.FORGETS_WILLS,
}
# Shown by clients of MQTT 5 only.
KILL_CONTROLS_5 = {"stores no properties": broker_mistakes.FORGETS_PROPERTIES}
# Number of runs of two brokers that share a Redis.
_FAILOVERS = 50
_QUICK_FAILOVERS = 3
# Tried with a group in the load; the others show more often without one, as there is less to do between two kills.
GROUP_CONTROLS = {
    "drops what a departed member of a group had": broker_mistakes.DROPS_WHAT_THE_DEPARTED_HAD,
    "forgets the queues of groups at a restart": broker_mistakes.FORGETS_SHARED_QUEUES,
    "gives another member what is in flight at QoS 2": broker_mistakes.HANDS_ON_QOS_2,
}
_CREW = 3


def main(arguments: list[str] | None = None) -> int:
    more = {"--kills": {"type": int, "help": "how many kills with each version of the protocol"}}
    return proving.run(_prove, "proves the broker", arguments, more)


def _prove(options: argparse.Namespace, say: proving.Say) -> tuple[dict[str, object], bool]:
    seed, kills = options.seed, options.kills or (10 if options.quick else 50)
    with tempfile.TemporaryDirectory(prefix="umqtt-prove-") as folder:
        tally = kill_law.Tally()
        for level in LEVELS:
            say(f"{kills} kills, protocol level {level}")
            found = kill_law.run(_new(folder, "kills"), kills, seed, protocol_level=level, say=say)
            for failure in found.failures[:20]:
                say(f"  {failure}")
            tally.add(found)
        say("planted mistakes")
        caught = _catch_all(Path(folder), seed)
        not_synced = None
        if shutil.which("strace") is None:
            say("no trace: strace is not installed — apt install strace")
        else:
            not_synced = sum(_trace(folder, seed, level, say) for level in LEVELS)
            for level, mistakes in ((4, trace_load.MISTAKES), (5, trace_load.MISTAKES_5)):
                for name, mistake in mistakes.items():
                    caught[f"traced: {name}"] = _catch_in_trace(Path(folder), mistake, seed, level)
        if find_redis() is None:
            say("no failover: redis-server is not installed — apt install redis-server")
        else:
            tally.add(_fail_over(folder, seed, _QUICK_FAILOVERS if options.quick else _FAILOVERS, say))
            for name, (mistake, faults) in failover_law.MISTAKES.items():
                caught[name] = _catch_in_failover(Path(folder), mistake, faults, seed)
        for name, how in caught.items():
            say(f"  {name}: {how or 'NOT CAUGHT'}")
    say("attacks")
    attacked, hurt = attacks.run_all(say, quick=options.quick)
    takeover_p95_s = round(_p95(tally.takeover_s), 2)
    found = {
        "runs": tally.runs,
        "messages": tally.messages,
        "lost": tally.lost,
        "duplicated": tally.duplicated,
        "out_of_order": tally.out_of_order,
        "other": tally.other,
        "not_synced": not_synced,
        "takeovers": len(tally.takeover_s),
        "takeover_p95_s": takeover_p95_s,
        "controls": len(caught),
        "controls_caught": sum(1 for how in caught.values() if how),
        "attacks": attacked,
        "attacks_hurt": hurt,
    }
    is_broken = tally.broken or not_synced or hurt or found["controls_caught"] != found["controls"]
    return found, bool(is_broken or takeover_p95_s > failover_law.TAKEOVER_LIMIT_S)


def _trace(folder: str, seed: int, level: int, say: proving.Say) -> int:
    law = trace_load.trace(_new(folder, "trace"), seed, protocol_level=level)
    packets = sum(law.checked.values())
    say(f"trace, protocol level {level}: {packets} packets, {law.needless} PUBACKs that needed no disk")
    for violation in law.violations[:20]:
        say(f"  {violation}")
    return len(law.violations)


def _fail_over(folder: str, seed: int, runs: int, say: proving.Say) -> kill_law.Tally:
    tally = kill_law.Tally()
    for number in range(seed, seed + runs):
        faults, engine = failover_law.plan(number)
        say(f"failover with {engine}, seed {number}: {', '.join(faults)}")
        found = failover_law.run(_new(folder, "failover"), faults, number, engine=engine)
        for failure in found.failures[:20]:
            say(f"  {failure}")
        tally.add(found)
    say(f"{len(tally.takeover_s)} takeovers, 95 of 100 within {_p95(tally.takeover_s):.2f} s")
    return tally


def _p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0.0


def _catch_all(folder: Path, seed: int) -> dict[str, str]:
    """Return how each mistake was caught. The controls are independent: one per core at a time."""
    controls = [(name, mistake, 0, 4) for name, mistake in KILL_CONTROLS.items()]
    controls += [(name, mistake, _CREW, 4) for name, mistake in GROUP_CONTROLS.items()]
    controls += [(name, mistake, 0, 5) for name, mistake in KILL_CONTROLS_5.items()]
    with ProcessPoolExecutor() as pool:
        found = [pool.submit(_catch, folder, mistake, seed, crew, level) for _, mistake, crew, level in controls]
        return {name: how.result() for (name, *_), how in zip(controls, found, strict=True)}


def _catch(folder: Path, mistake: str, seed: int, crew: int, level: int) -> str:
    """Return the first law that a mistake broke, "" if it was not caught."""

    def failures(seed: int) -> list[str]:
        new = _new(folder, "control")
        return kill_law.run(new, _CONTROL_KILLS, seed, mistake, crew=crew, protocol_level=level).failures

    return _first_of(failures, seed)


def _catch_in_trace(folder: Path, mistake: str, seed: int, level: int) -> str:
    return _first_of(lambda seed: trace_load.trace(_new(folder, "control"), seed, mistake, level).violations, seed)


def _catch_in_failover(folder: Path, mistake: str, faults: list[str], seed: int) -> str:
    return _first_of(lambda seed: failover_law.run(_new(folder, "control"), faults, seed, mistake).failures, seed)


def _first_of(run: Callable[[int], list[str]], seed: int) -> str:
    """Return the first failure in runs with several seeds, "" if there is none."""
    return next((failures[0] for attempt in range(_CONTROL_TRIES) if (failures := run(seed + attempt))), "")


def _new(folder: str | Path, prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))


if __name__ == "__main__":
    sys.exit(main())
