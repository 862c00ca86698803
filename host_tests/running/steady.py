"""Whether the tests depend on luck: they are run again and again on a machine that is busy and slow at random.

    python host_tests/running/steady.py [--runs 10] [--whole 2] [--seed N] [--json] [--keep FOLDER]

Tiers 0 and 1 run `--runs` times, everything that `make test` runs `--whole` times. Meanwhile two processes keep the
processors busy, every Python process has delays at its boundaries (see delays/sitecustomize.py), and processes of the
run are stopped for up to half a second. All of it is drawn from the seed. Prints a line for each run, and as its last
line one object: runs, whole_runs, tests (how many passed in all), failures (ids), seed, seconds. Exit code 1 if a test
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_BUSY = 2
_STOPPED_S = 0.5
_BETWEEN_STOPS_S = 1.0
# More workers than `make test` uses: on this machine most of them wait.
PARALLEL = ["-n", "8", "--dist", "loadfile", "--no-loadscope-reorder"]


@contextmanager
def busy_processes() -> Iterator[list[int]]:
    """Run processes that only keep a processor busy; yield their process ids."""
    loops = [subprocess.Popen([sys.executable, "-I", "-c", "while True: pass"]) for _ in range(_BUSY)]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def stopped_at_random(root: int, seed: str) -> Iterator[None]:
    """Stop a random process below `root` now and then, and let it continue."""
    rng = random.Random(seed)
    over = threading.Event()

    def stop_processes() -> None:
        while not over.wait(rng.random() * 2 * _BETWEEN_STOPS_S):
            below = descendants(root)
            if not below:
                continue
            pid = rng.choice(below)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(rng.random() * _STOPPED_S)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_processes)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one; none if there is no /proc."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if fields[0] not in "TtZ":  # stopped by its own test, traced, dead
                children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def run(arguments: list[str], seed: str, folder: Path) -> tuple[int, list[str]]:
    """Run pytest once; return (number of tests that passed, ids of those that failed).

    Its output and failures stay in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"UMQTT_DELAYS": seed, "PYTHONPATH": str(_HERE / "delays")}
    command = [sys.executable, "-m", "pytest", "-q", *PARALLEL, f"--failures={folder / 'failures'}", *arguments]
    with ExitStack() as stack:
        output = stack.enter_context((folder / "output.log").open("wb"))
        stack.enter_context(busy_processes())
        pytest = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        stack.enter_context(stopped_at_random(pytest.pid, seed))
        code = pytest.wait()
    text = (folder / "output.log").read_text(errors="replace")
    passed = re.findall(r"(\d+) passed", text.splitlines()[-1] if text else "")
    failed = [log.read_text().partition("\n")[0] for log in sorted((folder / "failures").glob("*.log"))]
    if code and not failed:
        failed = [f"pytest ended with {code}: see {folder / 'output.log'}"]
    return int(passed[0]) if passed else 0, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="runs of tiers 0 and 1")
    parser.add_argument("--whole", type=int, default=2, help="runs of everything")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--json", action="store_true", help="print the last line only")
    parser.add_argument("--keep", type=Path, default=_ROOT / ".steady", help="where output and failures are kept")
    options = parser.parse_args()
    began = time.monotonic()
    tests, failures = 0, []
    plans = [("tiers 0 and 1", ["--tiers=0,1"])] * options.runs + [
        ("everything", ["--tiers=0,1,2,smoke"])
    ] * options.whole
    for number, (name, arguments) in enumerate(plans):
        seed = f"{options.seed}-{number}"
        at = time.monotonic()
        passed, failed = run(arguments, seed, options.keep / str(number))
        tests += passed
        failures += failed
        if not options.json:
            said = f"failed: {', '.join(failed)}" if failed else "none failed"
            print(
                f"run {number}, {name}, seed {seed}: {passed} passed, {said}, {time.monotonic() - at:.0f} s", flush=True
            )
    print(
        json.dumps(
            {
                "runs": options.runs,
                "whole_runs": options.whole,
                "tests": tests,
                "failures": failures,
                "seed": options.seed,
                "seconds": round(time.monotonic() - began),
            }
        )
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
