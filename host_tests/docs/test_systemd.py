"""systemd accepts the units of docs/systemd.md, and ``umqtt`` accepts their commands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_kit.__main__ import umqtt
from umqtt_testkit.waiting import WAIT_LIMIT_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "systemd.md").read_text()
UNITS = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
NAMES = [name for heading in re.findall(r"^## (umqtt-.*)$", PAGE, re.MULTILINE) for name in heading.split(" and ")]
COMMANDS = re.findall(r"^ExecStart=/opt/umqtt/bin/umqtt (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS, ids=[line.split()[0] for line in COMMANDS])
def test_the_command_of_a_unit_has_the_options_that_it_is_given(line):
    """Planted: --state instead of --status."""
    name, *arguments = shlex.split(line)
    command = umqtt.get_command(umqtt.make_context("umqtt", ["--help"], resilient_parsing=True), name)
    assert command is not None
    command.make_context(name, arguments)


def test_systemd_takes_the_units(tmp_path):
    """Planted: TimeoutStop instead of TimeoutStopSec."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    assert len(UNITS) == len(NAMES) == 5
    for name, unit in zip(NAMES, UNITS, strict=True):
        # Any existing program will do: the units' own is installed elsewhere.
        (tmp_path / name).write_text(unit.replace("/opt/umqtt/bin/umqtt", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in NAMES)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_S)
    ours = [line for line in (told.stdout + told.stderr).splitlines() if "umqtt-" in line]
    assert not ours, ours
