"""The tables of docs/sizing.md are what its program prints, and the program's costs are those of the other pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_testkit.waiting import WAIT_LIMIT_S

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "sizing.md").read_text()
PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
# The text before and after the program: a cost cannot be its own source.
PROSE = PAGE.replace(PROGRAM, "")
SOURCES = re.findall(r'^([A-Z_, ]+) = .*  # ([\w-]+\.md): "(.+)"$', PROGRAM, re.MULTILINE)


def test_the_tables_are_what_the_program_prints() -> None:
    """Planted: a cost is changed in the program alone."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=True
    )
    shown = re.findall("<!-- sizing: begin -->\n(.*)<!-- sizing: end -->", PAGE, re.DOTALL)[0]
    assert shown.strip() == done.stdout.strip()


@pytest.mark.parametrize(("name", "page", "words"), SOURCES, ids=[one[0] for one in SOURCES])
def test_a_cost_is_on_the_page_that_it_is_said_to_be_from(name: str, page: str, words: str) -> None:
    """Planted: a page has a new figure."""
    assert words in (PROSE if page == "sizing.md" else (DOCS / page).read_text()), name


def test_every_measured_cost_has_a_source() -> None:
    """Planted: a comment that names no page."""
    measured = re.findall(r"# Measured\..*?\n(.*?)\n\n", PROGRAM, re.DOTALL)[0].splitlines()
    assert len(measured) >= 7 and [line for line in measured if '.md: "' not in line] == []
