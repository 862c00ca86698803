"""systemd accepts the units of docs/systemd.md and finds them hardened; their commands start."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish as paho
from proof.needs import needs_java
from spark_helpers import record
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from umqtt_cli.__main__ import umqtt

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


class Units:
    """The services of the page, started as their units say, in folders of this test.

    As root, all other files are read-only for them, and they have no capabilities (ProtectSystem, NoNewPrivileges,
    CapabilityBoundingSet). Not applied: User, PrivateTmp, SystemCallFilter and what else needs systemd.
    """

    def __init__(self, folder: Path) -> None:
        self.broker_port, metrics = reserved_port(), reserved_port()
        self._here = {"1883": str(self.broker_port), "9464": str(metrics)}
        for path in ("/etc/umqtt", "/var/lib/umqtt", "/run/umqtt-collector", "/run/umqtt-ingest", "/tmp"):
            (folder / path[1:]).mkdir(parents=True)
            self._here[path] = str(folder / path[1:])
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> "Units":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def here(self, text: str) -> str:
        """Return text of the page with the folders and ports of this test."""
        return re.sub("|".join(self._here), lambda found: self._here[found[0]], text)

    def write(self, name: str, kind: str) -> None:
        """Write the page's example of a file in /etc/umqtt."""
        # The page names the file in the text before the example, and with `=` in units.
        before = rf"^[^\n=]*/etc/umqtt/{re.escape(name)}\b(?:(?!```).)*"
        example = re.search(rf"{before}```{kind}\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
        assert example is not None
        Path(self.here(f"/etc/umqtt/{name}")).write_text(self.here(example[1]))

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start a service."""
        unit = UNITS[NAMES.index(f"umqtt-{name}.service")]
        found = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
        command = [str(Path(sys.executable).with_name("umqtt")), *shlex.split(self.here(found["ExecStart"]))[1:]]
        given = self.folder / f"credentials-{name}"
        given.mkdir()
        for credential in found.get("LoadCredential", "").split():
            key, _, source = credential.partition(":")
            shutil.copy(self.here(source), given / key)
        # What systemd sets, and where Java is; ProtectHome hides the home.
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/home/umqtt", "USER": found["User"]}
        environment |= {
            "CREDENTIALS_DIRECTORY": str(given),
            "TMPDIR": self.here("/tmp"),
            "UMQTT_TEST": str(self.folder),
        }
        if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("setpriv"):
            guard = 'mount --bind "$UMQTT_TEST" "$UMQTT_TEST" && mount -o remount,bind,ro / && exec setpriv "$@"'
            rights = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
            command = ["unshare", "--mount", "sh", "-c", guard, "sh", *rights, *command]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=int(found["UMask"], 8),
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.terminate)
        return process


@pytest.mark.tier(2)
@needs_java
def test_the_services_start_as_their_units_say_and_carry_a_reading_into_the_report(tmp_path):
    """With the files that the page shows. Planted: `-c` together with `--store`, which the broker refuses; a folder
    that the service may not write; Spark's own permissions for the checkpoint."""
    with Units(tmp_path) as units:
        passwords = PasswordFile(units.here("/etc/umqtt/passwords"))
        for user in (b"collector", b"pump-7"):
            passwords.set(user, PasswordHash.make(b"secret", 1))
        passwords.write()
        units.write("broker.conf", "")
        units.write("collect.toml", "toml")
        secret = Path(units.here("/etc/umqtt/secrets/north"))
        secret.parent.mkdir()
        secret.write_text("secret\n")
        broker = units.start("broker")
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line or broker.communicate()[1]
        collector, ingest = units.start("collector"), units.start("ingest")
        status = {name: Path(units.here(f"/run/umqtt-{name}/status.json")) for name in ("collector", "ingest")}

        def told(name: str, text: str) -> bool:
            ended = [one.communicate() for one in (collector, ingest) if one.poll() is not None]
            assert not ended, ended
            return status[name].exists() and text in status[name].read_text()

        eventually(lambda: told("collector", '"subscribed": true'), "the collector subscribes")
        login: Any = {"username": "pump-7", "password": "secret"}
        paho.single("fleet/pump-7/telemetry", record("pump-7", "1-x", 0), 1, port=units.broker_port, auth=login)
        eventually(lambda: told("ingest", '"rows_silver": 1'), "the reading is in silver")
        report = units.start("report")
        assert report.wait(WAIT_LIMIT_S) == 0, report.communicate()[1]
        for service in (ingest, collector, broker):
            service.terminate()
            assert service.wait(WAIT_LIMIT_S) == 0, service.communicate()[1]
    state = Path(units.here("/var/lib/umqtt"))
    assert (state / "report.html").exists()
    assert [path for path in state.rglob("*") if path.stat().st_mode & 0o077] == []
