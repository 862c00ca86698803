"""The project does not grow past its limits, and counts what it says it counts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "size_of_things.py"
_SPEC = importlib.util.spec_from_file_location("size_of_things", _SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
size_of_things = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(size_of_things)


def _names() -> list[str]:
    """Return every source file of the checkout; a test of this tier may not ask git."""
    root = size_of_things.ROOT
    folders = [*size_of_things.PRODUCT, size_of_things.TESTS]
    found = {path for folder in folders for path in (root / folder).rglob("*") if path.is_file()}
    return [
        path.relative_to(root).as_posix()
        for path in sorted(found)
        if path.suffix in size_of_things.SOURCE and "__pycache__" not in path.parts
    ]


def test_no_part_is_larger_than_its_limit() -> None:
    names = _names()
    assert not size_of_things.exceeded(size_of_things.totals(names, size_of_things.measure(names)))


def test_a_file_counts_once_and_the_test_kit_is_product() -> None:
    sizes = size_of_things.measure(["host_tests/umqtt_testkit/plugin.py", "host_tests/conftest.py", "mkdocs.py"])
    assert [sizes[folder].files for folder in ("host_tests/umqtt_testkit", "host_tests")] == [1, 1]
    assert sum(size.files for size in sizes.values()) == 2


def test_one_line_too_many_is_named() -> None:
    found = {**size_of_things.LIMITS, "product": size_of_things.LIMITS["product"] + 1}
    assert [line.split(":")[0] for line in size_of_things.exceeded(found)] == ["product"]
