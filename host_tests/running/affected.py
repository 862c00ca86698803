"""Chooses the tests that matter most for a change: the files of `make check`, as many as its time allows.

    python host_tests/running/affected.py [BASE]

prints pytest's arguments: the test files nearest to the change, then the smoke tests. The change consists of the
files that differ from BASE, and of files that git does not track yet. Without BASE it is what the upstream branch
lacks, or what is uncommitted; if there is neither, the last commit.

A test file is near if it imports a changed file in few steps. A test that runs a program as a process, or reads a
file that is not Python, imports neither: USES names those, by folder.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import costs
import tiers

ROOT = Path(__file__).resolve().parents[2]
HOST_TESTS = ROOT / "host_tests"

# Worker seconds of tests that fit into `make check` beside its start, lint and the smoke tests.
BUDGET_S = 45.0

# Folders that contain the project's modules.
_IMPORT_ROOTS = [ROOT, ROOT / "tools", ROOT / "firmware", HOST_TESTS]

# Folder below host_tests -> files and folders that its tests use without importing them, and their distance.
USES = {
    "architecture": (["umqtt_robust", "tools", "spark_ingest", "firmware", "pyproject.toml"], 1),
    "boards": (["firmware", "boards", "host_tests/umqtt_testkit"], 2),
    "broker": (["tools/umqtt_broker"], 3),
    "bundle": (["umqtt_robust", "firmware", "package.json", "package-full.json"], 2),
    "docs": (["docs", "README.md", "SECURITY.md", "CONTRIBUTING.md", "mkdocs.yml", "boards", "examples"], 1),
    "end_to_end": (["firmware", "tools/umqtt_kit", "umqtt_robust"], 3),
    "examples": (["examples"], 1),
    "kit": (["tools/umqtt_kit", "firmware", "boards"], 3),
    "packaging": (["pyproject.toml", "CHANGELOG.md"], 3),
    "spark": (["spark_ingest"], 3),
    "transports": (["umqtt_robust"], 2),
    "typechecks": (["umqtt_robust", "firmware"], 2),
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


@cache
def _helpers() -> dict[str, Path]:
    """Return the modules that tests import by their bare name."""
    return {path.stem: path for path in HOST_TESTS.rglob("*.py")}


@cache
def _module(name: str) -> tuple[Path, ...]:
    """Return the files that an import of this project's module reads; none for a module from elsewhere."""
    parts = name.split(".")
    for root in _IMPORT_ROOTS:
        found = []
        for n in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:n])
            found += [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.exists()]
        if found:
            return tuple(found)
    return (_helpers()[name],) if name in _helpers() else ()


@cache
def imports(path: Path) -> frozenset[Path]:
    """Return the project's files that a file imports."""
    found: set[Path] = set()
    for node in _statements(ast.parse(path.read_bytes())):
        for name in _imported(node, path):
            found.update(_module(name))
    return frozenset(found - {path})


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and every statement in it; ast.walk() would visit expressions too, which are most of a file."""
    yield node
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            yield from _statements(inner)


def _imported(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:
            package = path.parents[node.level - 1]
            root = next((root for root in _IMPORT_ROOTS[1:] if package.is_relative_to(root)), ROOT)
            module = ".".join([*package.relative_to(root).parts, *([module] if module else [])])
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)


def distances(changed: Iterable[Path]) -> dict[Path, int]:
    """Return every test file that depends on the change, with its number of steps from it."""
    changed = set(changed)
    tests = sorted(HOST_TESTS.rglob("test_*.py"))
    importers: dict[Path, set[Path]] = {}
    queue = [*tests, *HOST_TESTS.rglob("conftest.py")]
    seen = set(queue)
    while queue:
        path = queue.pop()
        for target in imports(path):
            importers.setdefault(target, set()).add(path)
            if target not in seen:
                seen.add(target)
                queue.append(target)
    for test in tests:
        for folder in test.parents[: len(test.relative_to(HOST_TESTS).parts) - 1]:
            if (shared := folder / "conftest.py").exists():
                importers.setdefault(shared, set()).add(test)
    steps = dict.fromkeys(changed, 0)
    waiting = deque(changed)
    while waiting:
        path = waiting.popleft()
        for importer in importers.get(path, ()):
            if importer not in steps:
                steps[importer] = steps[path] + 1
                waiting.append(importer)
    for test in tests:
        used, far = USES.get(test.relative_to(HOST_TESTS).parts[0], ([], 0))
        if any(path.is_relative_to(ROOT / place) for path in changed for place in used):
            steps[test] = min(steps.get(test, far), far)
    return {test: steps[test] for test in tests if test in steps}


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
