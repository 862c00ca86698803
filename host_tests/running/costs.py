"""The worker seconds of each test file: which files begin first, and what fits into `make check`.

python host_tests/running/costs.py FILE    copies those of a run of `pytest --junit-xml=FILE` into costs.tsv
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

HOST_TESTS = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).with_name("costs.tsv")
# Assumed for a file that was not measured yet: where it has to fit into a budget, and where the longest begin first,
# because it may be one of them.
_UNKNOWN_S = 5.0
LONG_S = 60.0


def by_file() -> dict[str, float]:
    """Return the kept costs: path below host_tests -> worker seconds of the file's tests."""
    rows = (line.split("\t") for line in KEPT.read_text().splitlines()[1:])
    return {name: float(seconds) for name, seconds, *_ in rows}


def worker_seconds(path: Path, kept: dict[str, float], unknown_s: float = _UNKNOWN_S) -> float:
    """Return the worker seconds that a file's tests take, according to the kept costs."""
    return kept.get(path.relative_to(HOST_TESTS).as_posix(), unknown_s)


def take_over(recorded: Path) -> None:
    """Write the costs of a recorded run to costs.tsv."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ET.parse(recorded).iter("testcase"):
        # host_tests.kit.test_cli, or host_tests.kit.test_cli.TestClass
        parts = case.attrib["classname"].split(".")[1:]
        file = next(n for n, part in enumerate(parts) if part.startswith("test_"))
        seconds["/".join(parts[: file + 1]) + ".py"] += float(case.attrib["time"])
    KEPT.write_text("file\tworker_s\n" + "".join(f"{name}\t{cost:.1f}\n" for name, cost in sorted(seconds.items())))


if __name__ == "__main__":
    take_over(Path(sys.argv[1]))
