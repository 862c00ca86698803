"""The firmware works with its hardware: sensors, Wi-Fi, the time of day, gaps, Home Assistant, on virtual boards."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from umqtt_kit.deploy.build import build
from umqtt_kit.deploy.filesets import optional_modules
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.waiting import eventually
from umqtt_testkit.wire import Type

MakeBoard = Callable[..., VirtualBoard]
_BEFORE_UNIX = 2_208_988_800
_TWO_BOARDS = ("ESP32_GENERIC_S3", "RPI_PICO_W")
_REAL_BOARDS = (*_TWO_BOARDS, "ESP32_GENERIC", "ESP32_GENERIC_C3", "ESP32_GENERIC_C6", "RPI_PICO2_W")


_OWN_SENSOR = b"""
class Sensor:
    def __init__(self, factor):
        self._factor = factor

    def read(self):
        return {"door": self._factor}
"""


class Broker:
    """A broker that collects a board's messages over one link, by last topic level, and acknowledges all."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self._link: Link = peer.accept()
        self.connect = self._link.accept_session()
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            packet = self._link.receive()
            assert packet is not None, "the board closed the connection"
            self._link.answer(packet)
            if packet.type is Type.PUBLISH and packet.topic_name:
                payload = json.loads(packet.payload) if packet.payload else {}
                self.messages.append((packet.topic_name.decode(), payload))

    def of(self, leaf: str) -> list[dict[str, Any]]:
        return [payload for topic, payload in self.messages if topic == f"fleet/b1/{leaf}"]

    def metrics(self) -> dict[str, float]:
        return self.of("telemetry")[-1]["m"] if self.of("telemetry") else {}

    def logged(self) -> list[str]:
        return [record["text"] for record in self.of("log")]

    def close(self) -> None:
        self._link.close()


@cache
def _program(optional: frozenset[str]) -> dict[str, bytes | Path]:
    # As it is deployed: the readable modules do not fit into a Pico W's flash.
    return dict(build("UNIX", optional).files)


def prepare(board: VirtualBoard, peer: ScriptedPeer, **settings: Any) -> None:
    values = {"device_id": "b1", "brokers": [peer.url], "interval_ms": 100, "watchdog_ms": 0, "ntp_host": ""}
    values.update(settings)
    secrets = values.pop("secrets", {})
    files = {"settings.json": json.dumps(values).encode(), "secrets.json": json.dumps(secrets).encode()}
    board.install(_program(optional_modules(values)) | files)


def _readme_sensors(model: str) -> list[dict[str, Any]]:
    text = (Path(__file__).resolve().parents[2] / "boards" / model / "README.md").read_text()
    (line,) = re.findall(r"--set 'sensors=(.*)'", text)
    return json.loads(line)


@pytest.mark.parametrize("model", _REAL_BOARDS if os.environ.get("UMQTT_FULL_SWEEPS") else _TWO_BOARDS)
def test_every_sensor_of_the_readme_answers_fails_alone_and_comes_back(
    virtual_board: MakeBoard, peer: ScriptedPeer, model: str
):
    """Planted: two sensors with one metric overwrite each other."""
    sensors = _readme_sensors(model)
    pin = {entry["module"]: str(entry.get("pin")) for entry in sensors}
    world: dict[str, Any] = {
        "chip_celsius": 31.0,
        "ds18b20": {pin["ds18b20"]: [21.5]},
        "dht": {pin["dht22"]: [22.4, 55.2]},
        "i2c": {"0x76": {"celsius": 20.5, "percent": 40, "hpa": 1003.2}},
    }
    board = virtual_board(board=model)
    board.hooks(**world)
    sensors.append({"module": "own", "factor": 3})
    if model.startswith("RPI"):
        world["supply_volts"] = 4.8
        board.hooks(**world)
        sensors.append({"module": "supply", "pin": 29, "factor": 3, "select": 25})
    prepare(board, peer, sensors=sensors)
    board.install({"sensors/own.py": _OWN_SENSOR})
    board.start()
    broker = Broker(peer)
    seen: dict[str, float] = {}

    def everything() -> bool:
        seen.update(broker.metrics())
        return {"ds18b20_temp_c", "dht22_temp_c", "temp_c", "door", "chip_c"} <= set(seen)

    broker.until(everything)
    assert seen["ds18b20_temp_c"] == 21.5
    assert (seen["dht22_temp_c"], seen["dht22_humidity_pct"]) == (22.4, 55.2)
    assert seen["temp_c"] == pytest.approx(20.5, abs=0.05)
    assert seen["pressure_hpa"] == pytest.approx(1003.2, abs=0.1)
    assert seen["humidity_pct"] == pytest.approx(40, abs=0.2)
    assert seen["chip_c"] == pytest.approx(31.0, abs=1)
    assert seen["door"] == 3
    if model.startswith("RPI"):
        # Measured once, before the radio uses the pins.
        supplied = [record["m"].get("supply_v") for record in broker.of("telemetry")]
        assert supplied[0] == pytest.approx(4.8, abs=0.05) and not any(supplied[1:])
    assert "sensor_failures" not in seen and broker.logged() == []
    board.hooks(**{**world, "ds18b20": {}, "i2c": {}})
    broker.until(lambda: {"ds18b20_temp_c", "temp_c"}.isdisjoint(broker.metrics()))
    count = len(broker.of("telemetry"))
    broker.until(lambda: len(broker.of("telemetry")) > count + 1)
    assert sorted(text.partition(": ")[0] for text in broker.logged()) == ["sensor bme280", "sensor ds18b20"]
    assert broker.metrics()["door"] == 3 and broker.metrics()["sensor_failures"] >= 2
    board.hooks(**world)
    broker.until(lambda: {"ds18b20_temp_c", "temp_c"} <= set(broker.metrics()))


def test_a_wrong_password_is_said_once_and_the_next_network_is_joined(virtual_board: MakeBoard, peer: ScriptedPeer):
    board = virtual_board(board="RPI_PICO_W")
    board.hooks(networks={"attic": "not this one", "cellar": "open sesame"}, rssi=-61, join_ms=10)
    secrets = {"wifi": {"attic": "wrong password", "cellar": "open sesame"}}
    prepare(board, peer, wifi=["attic", "cellar"], secrets=secrets, country="DE", hostname="b1", power_save=True)
    board.start()
    broker = Broker(peer)
    broker.until(lambda: bool(broker.of("telemetry") and broker.of("log")))
    assert broker.logged() == ["Wi-Fi: attic: wrong password: correct it with umqtt provision"]
    broker.until(lambda: "rssi" in broker.metrics())
    assert broker.metrics()["rssi"] == -61
    assert "sesame" not in board.output and "wrong password: " in board.output


class _TimeServer:
    """An SNTP server on this machine."""

    def __init__(self, unix_s: float) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.since = unix_s
        self._ahead = unix_s - time.monotonic()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def _serve(self) -> None:
        while True:
            request, sender = self._socket.recvfrom(128)
            if request == b"end":
                return
            now = self.now()
            stamp = struct.pack(">II", (int(now) + _BEFORE_UNIX) & 0xFFFFFFFF, int(now % 1 * (1 << 32)))
            self._socket.sendto(b"\x24\x01" + bytes(22) + request[40:48] + bytes(8) + stamp, sender)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"end", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def time_server() -> Iterator[_TimeServer]:
    # A time that is neither the host's nor any board's own.
    server = _TimeServer(1_893_456_000.25)
    yield server
    server.close()


@pytest.mark.parametrize("model", ["ESP32_GENERIC", "RPI_PICO_W"])
def test_a_board_that_wakes_in_the_past_says_null_and_then_the_time(
    virtual_board: MakeBoard, peer: ScriptedPeer, time_server: _TimeServer, model: str
):
    board = virtual_board(board=model)
    board.hooks(networks={"cellar": "open sesame"}, join_ms=1)
    secrets = {"wifi": {"cellar": "open sesame"}}
    prepare(board, peer, ntp_host=time_server.host, wifi=["cellar"], secrets=secrets, interval_ms=20)
    board.start()
    broker = Broker(peer)
    broker.until(lambda: bool(broker.of("telemetry") and broker.of("telemetry")[-1]["ts"]))
    records = broker.of("telemetry")
    assert records[0]["ts"] is None
    # However long ago that was; a late answer is corrected by half its round trip.
    assert time_server.since * 1000 <= records[-1]["ts"] <= time_server.now() * 1000 + 5000
    # It also sets the calendar, for TLS; the test asks at the prompt, where the application has stopped.
    board.type("\x03")
    board.wait_for(">>>")
    board.type("import time; print('year', time.gmtime()[0])\r")
    board.wait_for("year 2030")


def test_what_a_full_outbox_drops_is_announced_also_after_a_power_cut(
    virtual_board: MakeBoard, peer: ScriptedPeer, tmp_path: Path
):
    ground_truth = tmp_path / "ground_truth"
    board = virtual_board(env={"UMQTT_GROUND_TRUTH": str(ground_truth)})
    board.hooks(wifi=False)
    prepare(board, peer, wifi=["cellar"], outbox=8, interval_ms=20)
    board.start()
    eventually(lambda: ground_truth.exists() and ground_truth.read_bytes().count(b"\n") >= 40, lambda: board.output)
    board.kill()
    board.hooks(wifi=True)
    board.start()
    broker = Broker(peer)

    def arrived_and_announced() -> set[tuple[str, int]]:
        found = {(record["boot"], record["seq"]) for record in broker.of("telemetry")}
        for record in broker.of("log"):
            for first, last in record.get("dropped_seq", []):
                found.update((record["boot"], seq) for seq in range(first, last + 1))
        return found

    promised = {(boot, int(seq)) for boot, seq in (line.split() for line in ground_truth.read_text().splitlines())}
    broker.until(lambda: promised <= arrived_and_announced())
    announced = [record for record in broker.of("log") if record.get("dropped_seq")]
    assert all("readings dropped" in record["text"] for record in announced)
    first_boot = min(promised)[0]
    assert sum(last - first + 1 for record in announced if record["boot"] == first_boot
               for first, last in record["dropped_seq"]) >= 30  # fmt: skip


def test_home_assistant_is_told_and_forgets(virtual_board: MakeBoard, peer: ScriptedPeer):
    board = virtual_board()

    def configs(broker: Broker) -> dict[str, dict[str, Any]]:
        return {topic.split("/")[3]: payload for topic, payload in broker.messages if topic.startswith("homeassist")}

    prepare(board, peer, home_assistant=True)
    board.start()
    broker = Broker(peer)
    broker.until(lambda: {"mem_free", "uptime_s", "loop_ms"} <= set(configs(broker)))
    assert configs(broker)["mem_free"]["device"]["identifiers"] == ["b1"]
    count = len(broker.of("telemetry"))
    broker.until(lambda: len(broker.of("telemetry")) > count + 3)
    board.kill()
    broker.close()
    prepare(board, peer, home_assistant=False)
    board.start()
    broker = Broker(peer)
    broker.until(lambda: {"mem_free", "uptime_s", "loop_ms"} <= set(configs(broker)))
    assert set(map(str, configs(broker).values())) == {"{}"}
