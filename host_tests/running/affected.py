"""Chooses the tests that matter most for a change: the files of `make check`, as many as its time allows.

    python host_tests/running/affected.py [BASE]

prints pytest's arguments: the test files nearest to the change, then the smoke tests. The change consists of the
files that differ from BASE, and of files that git does not track yet. Without BASE it is what the upstream branch
lacks, or what is uncommitted; if there is neither, the last commit.

A test file is near if it imports a changed file itself. One that imports it in steps, runs a program as a process, or
reads a file that is not Python, does not: USES names those, by folder.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import costs
import tiers

ROOT = Path(__file__).resolve().parents[2]
HOST_TESTS = ROOT / "host_tests"

# Worker seconds of tests that fit into `make check` beside its start, lint and the smoke tests.
BUDGET_S = 45.0

# Folders that contain the project's modules.
_IMPORT_ROOTS = [ROOT, ROOT / "tools", ROOT / "firmware"]

# Folder below host_tests -> files and folders that its tests use without importing them, and their distance.
USES = {
    "architecture": (["umqtt_robust", "tools", "spark_ingest", "firmware", "pyproject.toml"], 1),
    "boards": (["firmware", "boards", "host_tests/umqtt_testkit"], 2),
    "broker": (["tools/umqtt_broker"], 3),
    "bundle": (["umqtt_robust", "firmware", "package.json", "package-full.json"], 2),
    "console": (["tools/umqtt_console", "tools/umqtt_page"], 3),
    "docs": (["docs", "README.md", "SECURITY.md", "CONTRIBUTING.md", "mkdocs.yml", "boards", "examples"], 1),
    "end_to_end": (["firmware", "tools/umqtt_kit", "umqtt_robust"], 3),
    "examples": (["examples"], 1),
    "kit": (["tools/umqtt_kit", "umqtt_cli", "firmware", "boards"], 3),
    "packaging": (["pyproject.toml", "CHANGELOG.md"], 3),
    "spark": (["spark_ingest"], 3),
    "laws": (["umqtt_robust", "firmware"], 2),
    "transports": (["umqtt_robust"], 2),
    "typechecks": (["umqtt_robust", "firmware"], 2),
    "unit": (["umqtt_robust", "firmware"], 2),
}


def changed_files(base: str | None) -> set[Path]:
    """Return the files that differ from `base`, as the module's docstring says, and still exist."""
    upstream = _git("rev-parse", "--quiet", "--verify", "@{upstream}")
    for revision in [base] if base else [*upstream, "HEAD", "HEAD~1"]:
        names = _git("diff", "--name-only", revision) + _git("ls-files", "--others", "--exclude-standard")
        if names:
            return {path for name in names if (path := ROOT / name).exists()}
    return set()


def _git(*arguments: str) -> list[str]:
    ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.splitlines() if ended.returncode == 0 else []


def _imported(path: Path) -> re.Pattern[str]:
    """Return a pattern of a line that imports this module."""
    module = path.parent if path.stem == "__init__" else path.with_suffix("")
    package = "" if module.parent in _IMPORT_ROOTS or HOST_TESTS in module.parents else rf"\b{module.parent.name}\b.*"
    return re.compile(rf"^\s*(?:from|import)\s.*{package}\b{re.escape(module.name)}\b", re.MULTILINE)


def distances(changed: Iterable[Path]) -> dict[Path, int]:
    """Return every test file that depends on the change: 0 if it has changed, 1 if it imports it, or as in USES."""
    changed = set(changed)
    imported = [_imported(path) for path in changed if path.suffix == ".py"]
    found = {}
    for test in sorted(HOST_TESTS.rglob("test_*.py")):
        used, far = USES.get(test.relative_to(HOST_TESTS).parts[0], ([], 0))
        text = test.read_text()
        if test in changed:
            found[test] = 0
        elif test.with_name("conftest.py") in changed or any(pattern.search(text) for pattern in imported):
            found[test] = 1
        elif any(path.is_relative_to(ROOT / place) for path in changed for place in used):
            found[test] = 1 + far
    return found


def smoke_tests() -> list[str]:
    """Return the ids of the tests marked as smoke tests."""
    found = []
    for path in sorted(HOST_TESTS.rglob("test_*.py")):
        if b"mark.smoke" not in path.read_bytes():
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and any("mark.smoke" in ast.unparse(d) for d in node.decorator_list):
                found.append(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return found


def choose(steps: dict[Path, int], left_s: float = BUDGET_S) -> list[Path]:
    """Return test files within a budget of worker seconds: the nearest first, then by tier, then the cheapest."""
    kept = costs.by_file()
    chosen = []
    order = sorted(steps, key=lambda path: (steps[path], tiers.tier_of_file(path), costs.worker_seconds(path, kept)))
    for path in order:
        seconds = costs.worker_seconds(path, kept)
        if seconds <= left_s and tiers.tier_of_file(path) < 3:
            left_s -= seconds
            chosen.append(path)
    return chosen


def main() -> None:
    near = distances(changed_files(sys.argv[1] if len(sys.argv) > 1 else None))
    files = [path.relative_to(ROOT).as_posix() for path in choose(near)]
    print(
        f"check: {len(files)} of {len(near)} test files that the change reaches, and the smoke tests", file=sys.stderr
    )
    print(" ".join([*files, *(name for name in smoke_tests() if name.split("::")[0] not in files)]))


if __name__ == "__main__":
    main()
