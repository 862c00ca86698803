"""A fleet of virtual boards takes a good release in stages; a release that fails neither spreads nor stays.

`make test` runs two boards; UMQTT_FULL_SWEEPS=1 runs 20, with more kinds of failure. Prints the table of
docs/tools.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from impatient import builds_impatient
from kit_command import umqtt_here
from owner import own
from paho_subscriber import Subscriber
from umqtt_kit.app_bundle import INIT, AppBundle
from umqtt_kit.deploy import build as build_module
from umqtt_kit.deploy.build import Build, build
from umqtt_kit.mpy_cross import compile_file
from umqtt_kit.ota import rollout
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_BOARDS = [f"pump-{number:02}" for number in range(1, 21 if FULL else 3)]
_ALL = len(_BOARDS)
_FIRST = "0.1.0"
_SENSOR = "class Sensor:\n    def read(self): return {'open': 1}\n"
# Restarts the board once, when it is set to log_level debug: long after the release was confirmed.
_RESTARTING_SENSOR = """
import json, machine, os
class Sensor:
    def read(self):
        if json.load(open("/settings.json")).get("log_level") == "debug" and "restarted" not in os.listdir("/"):
            open("/restarted", "w").close()
            machine.reset()
        return {"open": 1}
"""


@pytest.fixture(scope="module", autouse=True)
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from builds_impatient(tmp_path_factory.mktemp("firmware"), _FIRST)


class Fleet:
    """The boards of a broker, and the results of `umqtt ota --fleet`. table: a line for each release."""

    def __init__(self, folder: Path, port: int, subscriber: Subscriber, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._subscriber, self._patch = folder, subscriber, patch
        self._url = f"mqtt://127.0.0.1:{port}"
        self._sensors = folder / "sensors"
        self._sensors.mkdir()
        self.table: list[str] = []

    def files(self, device: str) -> dict[str, bytes]:
        settings = {"device_id": device, "brokers": [self._url], "interval_ms": 500, "board": "UNIX", "ntp_host": "",
                    "sensors": [{"module": "door"}]}  # fmt: skip
        secrets = own(device, self._folder, self._patch)
        written = {"/settings.json": json.dumps(settings).encode(), "/secrets.json": json.dumps(secrets).encode()}
        return {**build("UNIX", ()).files, **written}

    def umqtt(self, *arguments: str) -> tuple[int, dict]:
        ended = umqtt_here(self._folder, *arguments, "--broker", self._url, "--json")
        assert ended.stdout, ended.stderr
        return ended.code, json.loads(ended.stdout)

    def boots(self, device: str) -> list[str]:
        """Return the boots of a board from which readings have come, in order."""
        return list(dict.fromkeys(record["boot"] for record in self._subscriber.records if record["id"] == device))

    def restart(self, device: str) -> None:
        """Make a board that runs _RESTARTING_SENSOR restart itself."""
        before = self.boots(device)
        self.umqtt("cmd", device, "set", "log_level", "debug")
        assert self._subscriber.wait_for(lambda: len(self.boots(device)) > len(before))

    def roll_out(
        self, what: str, version: str, *, made: Callable[..., Build] = build, sensor: str = _SENSOR,
        watch: Callable[[], None] = lambda: None,
    ) -> tuple[Counter[str], Counter[str]]:  # fmt: skip
        """Roll out a release; return how many boards ended in each state, and how many then run each version.

        made: builds the release; watch: called while a stage is being watched.
        """
        (self._sensors / "door.py").write_text(sensor)
        with self._patch.context() as patch:
            patch.setattr("umqtt_kit.ota.release.build", made)
            patch.setattr(rollout, "time", SimpleNamespace(sleep=lambda seconds: watch(), monotonic=time.monotonic))
            code, answer = self.umqtt("ota", "--fleet", "pump-*", "--stages", "1,10%,100%", "--version", version,
                                      "--sensors", str(self._sensors))  # fmt: skip
        states = Counter(row["state"] for row in answer["devices"])
        for row in answer["devices"]:
            assert row["state"] != "failed" or "rolled back" in row["text"] or "went back" in row["text"], row
        assert code == (5 if states["failed"] else 0)
        running = Counter(self.umqtt("cmd", device, "ping")[1]["result"]["fw"] for device in _BOARDS)
        reached = max(row["stage"] for row in answer["devices"] if row["state"] != "left alone")
        cells = (what, reached, states["updated"], states["had it already"], states["failed"], states["left alone"],
                 ", ".join(f"{count} {name}" for name, count in sorted(running.items())))  # fmt: skip
        self.table.append("| " + " | ".join(map(str, cells)) + " |")
        return states, running

    def crashing(self, version: str, ending: str) -> Callable[..., Build]:
        """Return the builder of a release that crashes at its start on boards whose id has this ending."""
        file = self._folder / "crashing.py"
        source = AppBundle(build_module.firmware_folder()).sources[INIT]
        assert source.count(f"'{_FIRST}'") == 1
        source = source.replace(f"'{_FIRST}'", f"'{version}'")
        crash = f"json.load(open('/settings.json'))['device_id'].endswith('{ending}')"
        file.write_text(f"{source}\nimport json\nif {crash}: raise ValueError('a bad version')\n")
        compile_file(file, file.with_suffix(".mpy"))
        package = file.with_suffix(".mpy").read_bytes()

        def made(*arguments) -> Build:
            built = build(*arguments)
            return replace(built, files={**built.files, "/app/__init__.mpy": package})

        return made


@pytest.fixture
def fleet(tmp_path: Path, broker: int, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, broker, subscriber, monkeypatch)
    with contextlib.ExitStack() as boards:
        for name in _BOARDS:
            try:
                board = boards.enter_context(VirtualBoard(tmp_path / f"{name}.img", heap="1M"))
            except MicroPythonMissing as missing:
                pytest.skip(str(missing))
            board.install(dict(fleet.files(name)))
            board.start()
        assert subscriber.wait_for(lambda: all(map(fleet.boots, _BOARDS)))
        yield fleet
    print("\n".join(["| release | stage reached | updated | had it | failed, went back | left alone | then run |",
                     "|---|---|---|---|---|---|---|", *fleet.table]))  # fmt: skip


def test_a_fleet_takes_what_is_good_and_none_keeps_or_spreads_what_is_not(fleet: Fleet, subscriber: Subscriber):
    """A fleet takes a good release, and no board keeps or spreads a bad one.

    Planted: a confirmed version counts as healthy; a stage begins whatever the result of the previous one; sensors
    are not shipped; the reported version is that of the manifest, not the running one.
    """
    states, running = fleet.roll_out("good", "0.2.0")
    assert (states, running) == ({"updated": _ALL}, {"0.2.0": _ALL})
    # The sensor was shipped: before that it failed.
    assert subscriber.wait_for(
        lambda: {record["id"] for record in subscriber.records if "open" in record["m"]} == set(_BOARDS)
    )

    states, running = fleet.roll_out("crashes at its start", "0.3.0", made=fleet.crashing("0.3.0", ""))
    assert (states, running) == ({"failed": 1, "left alone": _ALL - 1}, {"0.2.0": _ALL})

    states, running = fleet.roll_out("restarts after it was confirmed", "0.4.0", sensor=_RESTARTING_SENSOR,
                                     watch=lambda: fleet.restart(_BOARDS[0]))  # fmt: skip
    assert (states, running) == ({"failed": 1, "left alone": _ALL - 1}, {"0.2.0": _ALL})

    if FULL:
        bad = fleet.crashing("0.5.0", "7")  # pump-07 and pump-17, which belong to the last stage
        states, running = fleet.roll_out("crashes at its start on two boards of the last stage", "0.5.0", made=bad)
        assert states["failed"] >= 1 and states["updated"] >= 2 and states.total() == _ALL
        assert running == {"0.5.0": states["updated"], "0.2.0": _ALL - states["updated"]}

        states, running = fleet.roll_out("good, by the same command", "0.6.0")
        assert (states, running) == ({"updated": _ALL}, {"0.6.0": _ALL})
        states, _ = fleet.roll_out("the same once more", "0.6.0")
        assert states == {"had it already": _ALL}

    # Nothing was lost meanwhile: each boot counted from 0 without a gap.
    seqs = defaultdict(set)
    for one in subscriber.received:
        seqs[one.boot].add(one.seq)
    for boot, found in seqs.items():
        assert found == set(range(len(found))), boot
