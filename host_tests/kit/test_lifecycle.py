"""A board's life with the tools: provisioned, deployed, read, commanded, crashed, repaired, updated and rolled back.

A story in which each step finds the board in the state that the previous one left. The board is real MicroPython,
mpremote the real one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from cable import Cable, broker
from impatient import builds_impatient, impatient_firmware
from live_logs import following
from owner import own
from umqtt_kit.deploy.build import build
from umqtt_kit.keys import Keys
from umqtt_kit.mpy_cross import compile_file
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import WAIT_LIMIT_S

_ID = "pump-7"
# A sensor whose error no `except Exception` of the firmware catches.
_CRASHES = """
class Broken(BaseException):
    pass

class Sensor:
    def read(self):
        raise Broken("pressure")
"""
_OLD, _NEWER = "0.0.9", "0.2.0"
_SENSORS = [{"module": "broken"}]


class Listener:
    """What a board publishes, seen by a client of another maker: by last part of the topic, in order."""

    def __init__(self, port: int) -> None:
        self._came: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "listener")
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(f"fleet/{_ID}/#", 1)
        assert subscribed.wait(WAIT_LIMIT_S)

    def said(self, leaf: str) -> list[dict[str, Any]]:
        return [record for one, record in self._came if one == leaf]

    def until(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(condition()), WAIT_LIMIT_S), self._came[-5:]

    def reads(self, boot: str | None = None) -> None:
        """Wait until a reading (of this boot, if given) has come."""
        self.until(lambda: [one for one in self.said("telemetry") if boot in (None, one["boot"])])

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, client: object, user_data: object, message: paho.MQTTMessage) -> None:
        try:
            record = json.loads(message.payload)
        except ValueError:
            return  # a piece of an update
        with self._changed:
            self._came.append((message.topic.rpartition("/")[2], record))
            self._changed.notify_all()


class Bench:
    """A board on the cable, a broker and a listener."""

    def __init__(self, cable: Cable, board: VirtualBoard, port: int, folder: Path, listener: Listener) -> None:
        self.cable, self.board, self.port, self.folder, self.listener = cable, board, port, folder, listener

    def umqtt(self, *arguments: str, code: int = 0) -> str:
        """Run the command, which must end with this code; return its stdout, or its stderr if code is not 0."""
        answer = self.cable.umqtt(*arguments)
        assert answer.code == code, answer.stderr
        return answer.stderr if code else answer.stdout

    def cmd(self, *arguments: str) -> Any:
        """Run umqtt cmd; return its result."""
        return json.loads(self.umqtt("cmd", _ID, *arguments, "--json", "--timeout", str(WAIT_LIMIT_S)))["result"]

    def mpremote(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "mpremote", "connect", self.board.port, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The steps

    def provision(self) -> None:
        file = self.folder / "pump-7.json"
        brokers = [f"mqtt://127.0.0.1:{self.port}"]
        file.write_text(json.dumps({
            "settings": {"device_id": _ID, "brokers": brokers, "interval_ms": 100},
            "wifi": [{"ssid": "workshop", "password": "correct horse"}],
        }))  # fmt: skip
        file.chmod(0o600)
        self.umqtt("provision", "--from", str(file))
        assert json.loads(self.mpremote("fs", "cat", ":settings.json"))["brokers"] == brokers
        self.umqtt("keys", "make")
        shown = self.umqtt("provision", "--show")
        assert 'secrets.commands = {"key": "(set)"}' in shown
        for secret in ("correct horse", Keys().read()[_ID]["key"]):
            assert secret not in shown

    def deploy(self) -> None:
        answer = json.loads(self.umqtt("deploy", "--json", "--timeout", str(WAIT_LIMIT_S)))
        # The board runs, and its first reading was seen at the broker.
        assert answer["reading"]["id"] == _ID
        self.listener.reads(answer["reading"]["boot"])

    def see_the_boot_in_the_logs(self) -> None:
        with following("--device", "bench") as logs:
            logs.until("bench: connected")
            self.cmd("reboot")
            logs.until("info Wi-Fi: joined workshop")
            assert logs.interrupt() == 0

    def ping(self) -> str:
        found = self.cmd("ping")
        self.listener.reads(found["boot"])
        return found["boot"]

    def set(self) -> None:
        assert self.cmd("set", "interval_ms", "50")["applies"] == "now"
        assert self.cmd("get", "interval_ms")["value"] == 50

    def reboot(self) -> None:
        before = self.ping()
        assert self.cmd("reboot")["boot"] != before
        assert self.ping() != before

    def crash(self) -> None:
        """Make it crash by a sensor that mpremote copies; the settings name it from the next start on."""
        module = self.folder / "broken.py"
        module.write_text(_CRASHES)
        self.mpremote("fs", "mkdir", ":/sensors", "+", "fs", "cp", str(module), ":/sensors/broken.py")
        self.umqtt("provision", "--set", f"sensors={json.dumps(_SENSORS)}")

    def safe_mode(self) -> None:
        """Check that three crashes have led to safe mode, and that it says why."""
        self.listener.until(lambda: [one for one in self.listener.said("status") if one["reason"] == "safe mode"])
        self.listener.until(lambda: [one for one in self.listener.said("log") if "Broken: pressure" in one["text"]])
        crash = self.cmd("crash")
        assert (crash["n"], "broken.py" in crash["traceback"]) == (3, True)
        shown = self.umqtt("cmd", _ID, "crash")
        assert "Broken: pressure" in shown

    def mend(self) -> None:
        self.umqtt("provision", "--set", "sensors=[]")
        # Safe mode ends by a command, since the board cannot know that something was repaired.
        self.cmd("reboot")
        self.ping()

    def ota(self, patch: pytest.MonkeyPatch) -> None:
        newer = impatient_firmware(self.folder / "newer", _NEWER)
        with patch.context() as other:
            other.setattr("umqtt_kit.deploy.build.firmware_folder", lambda: newer)
            found = json.loads(self.umqtt("ota", _ID, "--json"))
        assert (found["version"], found["slot"]) == (_NEWER, "a")
        assert self.cmd("ping")["fw"] == _NEWER

    def ota_of_a_bad_version(self, patch: pytest.MonkeyPatch) -> None:
        source = self.folder / "application.py"
        source.write_text("raise ValueError('a bad version')\n")
        compile_file(source, source.with_suffix(".mpy"))
        good = build("UNIX", (), "0.3.0")
        bad = replace(good, files={**good.files, "/app/application.mpy": source.with_suffix(".mpy").read_bytes()})
        with patch.context() as other:
            other.setattr("umqtt_kit.ota.release.build", lambda *_: bad)
            assert "rolled back" in self.umqtt("ota", _ID, "--version", "0.3.0", code=5)
        self.listener.until(lambda: self.listener.said("status")[-1].get("rolled_back"))
        self.ping()

    def rollback(self) -> None:
        assert json.loads(self.umqtt("ota", _ID, "--rollback", "--json"))["slot"] == "base"
        assert self.cmd("ping")["slot"] == "base"


@pytest.fixture(scope="module", autouse=True)
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from builds_impatient(tmp_path_factory.mktemp("firmware"), _OLD)


@pytest.fixture
def bench(cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with contextlib.ExitStack() as running:
        port = running.enter_context(broker(tmp_path))
        monkeypatch.setenv("UMQTT_BROKER", f"mqtt://127.0.0.1:{port}")
        listener = Listener(port)
        running.callback(listener.close)
        board = running.enter_context(cable.board())
        own(_ID, tmp_path, monkeypatch)
        yield Bench(cable, board, port, tmp_path, listener)


def test_the_life_of_a_board(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.provision()
    bench.deploy()
    bench.see_the_boot_in_the_logs()
    bench.ping()
    bench.set()
    bench.reboot()
    assert bench.cmd("get", "interval_ms")["value"] == 50, "what was set has outlived the restart"
    bench.crash()
    bench.safe_mode()
    bench.mend()
    bench.ota(monkeypatch)
    bench.ota_of_a_bad_version(monkeypatch)
    assert bench.cmd("ping")["fw"] == _NEWER, "the version before the bad one"
    bench.rollback()
    assert bench.cmd("get", "interval_ms")["value"] == 50, "no version took the settings with it"
    # Whatever was restarted in between, each boot has counted its readings from 0 without a gap.
    readings = bench.listener.said("telemetry")
    for boot in {one["boot"] for one in readings}:
        seqs = sorted({one["seq"] for one in readings if one["boot"] == boot})
        assert seqs == list(range(len(seqs)))
