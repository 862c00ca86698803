"""The project's top-level pages name only files, tests and make targets that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier(0)
ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "examples/README.md")
_LINK = re.compile(r'\]\(([^\s)#]+)[^\s)]*(?:\s+"([^"]+)")?\)')


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_links_to_exists(name: str) -> None:
    """Planted: a link to a test that has been renamed."""
    page = ROOT / name
    for target, test in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        assert (page.parent / target).exists(), target
        if test:
            assert f"def {test}(" in (page.parent / target).read_text(), f"{target} has no {test}"


def test_every_promise_of_the_threat_model_names_its_tests_and_its_date() -> None:
    """Planted: a promise without a test; one without a date."""
    text = (ROOT / "SECURITY.md").read_text()
    tables = re.findall(r"^\| .* \| test \| since \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    promises = [row for table in tables for row in table.splitlines()]
    assert len(promises) >= 25
    is_whole = re.compile(r"\| .+ \| \[test\]\(host_tests/.*\) \| 20\d\d-\d\d-\d\d \|$")
    assert [row for row in promises if not is_whole.match(row)] == []
    # What somebody cannot do is nowhere but in such a table.
    assert not re.search(r"cannot:\n", text)


@pytest.mark.parametrize("name", PAGES)
def test_the_make_targets_that_a_page_names_exist(name: str) -> None:
    """Planted: `make tests` in CONTRIBUTING.md."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert named <= targets
