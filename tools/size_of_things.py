"""`make size-of-things`: counts the lines of source in each part and writes the table in docs/architecture.md.

Counted are the source files that git lists: product (what users install, the test kit included), tests, and the modules
of the client. Each has a limit: when something was deleted it is lowered to what is left, and it rises only for a new
part.

    python tools/size_of_things.py    prints the table and writes it into the page; exits with 1 if a limit is exceeded
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = {".py", ".pyi", ".sh", ".c", ".css", ".html", ".js", ".sql", ".toml"}

PRODUCT = (
    "umqtt_robust",
    "firmware",
    "boards",
    "tools/umqtt_broker",
    "tools/umqtt_console",
    "tools/umqtt_kit",
    "tools/umqtt_page",
    "umqtt_cli",
    "spark_ingest",
    "host_tests/umqtt_testkit",
    "examples",
)
"""The folders of the product. The tests are what else lies below host_tests."""

TESTS = "host_tests"
CLIENT = "umqtt_robust"

LIMITS = {"product": 87_360, "tests": 100_000, "client modules": 36}

_BEGIN, _END = "<!-- sizes: begin -->", "<!-- sizes: end -->"


class Size(NamedTuple):
    """The size of a folder: its source files and their lines."""

    files: int
    lines: int


def source_files() -> list[str]:
    """Return the source files that git lists, or would list after `git add`, as paths below the root.

    :raises subprocess.CalledProcessError: this is no checkout.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if Path(name).suffix in SOURCE and (ROOT / name).is_file()]


def measure(names: list[str]) -> dict[str, Size]:
    """Return the size of each folder of PRODUCT and of TESTS."""
    counts = {folder: [0, 0] for folder in (*PRODUCT, TESTS)}
    for name in names:
        folder = next((one for one in counts if name.startswith(one + "/")), None)
        if folder is not None:
            counts[folder][0] += 1
            counts[folder][1] += len((ROOT / name).read_bytes().splitlines())
    return {folder: Size(*count) for folder, count in counts.items()}


def totals(names: list[str], sizes: dict[str, Size]) -> dict[str, int]:
    """Return what LIMITS bounds."""
    modules = [name for name in names if Path(name).parent.as_posix() == CLIENT and name.endswith(".py")]
    return {
        "product": sum(sizes[folder].lines for folder in PRODUCT),
        "tests": sizes[TESTS].lines,
        "client modules": len(modules),
    }


def table(sizes: dict[str, Size], found: dict[str, int]) -> str:
    """Return the page's tables, in Markdown."""
    rows = ["| folder | files | lines |", "|---|---|---|"]
    rows += [f"| `{folder}` | {size.files:,} | {size.lines:,} |" for folder, size in sizes.items()]
    rows += ["", "| | now | limit |", "|---|---|---|"]
    rows += [f"| {name} | {found[name]:,} | {limit:,} |" for name, limit in LIMITS.items()]
    return "\n".join(rows)


def exceeded(found: dict[str, int]) -> list[str]:
    """Return a line for each limit that is exceeded."""
    return [f"{name}: {found[name]:,} of {limit:,}" for name, limit in LIMITS.items() if found[name] > limit]


def main() -> int:
    names = source_files()
    sizes = measure(names)
    found = totals(names, sizes)
    text = table(sizes, found)
    print(text)
    too_large = exceeded(found)
    for line in too_large:
        print(f"size-of-things: too large: {line}; delete something", file=sys.stderr)
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{rest.split(_END)[1]}")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
