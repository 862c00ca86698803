"""The project shown file by file in docs/test-kit.md passes its own tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "test-kit.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def passed(project: Path, *paths: str) -> str:
    """Run pytest; return its last line."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp=tmp")
    command = [sys.executable, "-m", "pytest", *options, *paths]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=3 * WAIT_LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_the_tests_on_the_page_pass_as_it_says(project: Path) -> None:
    """Planted: a method of the scripted peer has another name."""
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    assert re.search(r"\$ pytest\n(\d+ passed)", PAGE)[1] in passed(project, "tests/device")
    others = [name for name in FILES if name.startswith("tests/test_")]
    assert len(others) == 7
    # Without root there is no network of our own.
    assert passed(project, *others).startswith(("7 passed", "6 passed, 1 skipped"))


def test_the_page_names_every_helper_for_portable_tests() -> None:
    """Planted: a new helper that is missing on the page."""
    from umqtt_testkit import portable

    table = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    public = {name for name, what in vars(portable).items() if name[0] != "_" and callable(what)} - {"Skip"}
    assert table == public
