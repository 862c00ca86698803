"""systemd accepts the units of docs/systemd.md and finds them hardened; their commands start."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
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


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".service")])
def test_a_unit_gives_up_what_it_does_not_need(tmp_path, name):
    """Planted: a unit without CapabilityBoundingSet."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = UNITS[NAMES.index(name)]
    assert "UMask=0077" in unit
    (tmp_path / name).write_text(unit)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / name)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_S)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told.stdout)
    if found is None and "Unknown" in told.stderr + told.stdout:
        pytest.skip("this systemd-analyze is older than 250")
    assert found is not None, told.stderr
    # The page says so; a unit with the usual three lines of hardening has about 8.
    assert float(found[1]) <= 1.7


def test_the_unit_of_the_broker_starts_as_its_command_line_says(tmp_path):
    """With the settings that the page shows. Planted: `-c` together with `--store`, which the command refuses."""
    settings = re.search(r"settings? of /etc/umqtt/broker.conf.*?```\n(.*?)```", PAGE, re.DOTALL)
    assert settings is not None
    folders = {"/etc/umqtt": tmp_path / "etc", "/var/lib/umqtt": tmp_path / "state"}

    def here(text: str) -> str:
        for path, folder in folders.items():
            folder.mkdir(exist_ok=True)
            text = text.replace(path, str(folder))
        return text

    passwords = PasswordFile(here("/etc/umqtt/passwords"))
    passwords.set(b"pump-7", PasswordHash.make(b"secret", 1))
    passwords.write()
    Path(here("/etc/umqtt/broker.conf")).write_text(here(settings[1]).replace("listener 1883", "listener 0"))
    (command,) = [line for line in COMMANDS if line.startswith("broker")]
    umqtt_here = str(Path(sys.executable).with_name("umqtt"))
    started = [umqtt_here, *shlex.split(here(command))]
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=0o077)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=WAIT_LIMIT_S)
    assert line.startswith("listening on 127.0.0.1:"), errors
    made = list((tmp_path / "state").iterdir())
    assert made and all(path.stat().st_mode & 0o077 == 0 for path in made)
