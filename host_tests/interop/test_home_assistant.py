"""Home Assistant's own MQTT component makes of our discovery messages what a user expects.

It needs much, so it is not installed with the other tools: name a Python that has it. For Python 3.11 that is
`pip install --no-deps homeassistant==2024.3.3` and the packages that it asks for, paho-mqtt==1.6.1 among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_testkit.mosquitto import Mosquitto

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "firmware"), str(ROOT / "host_tests" / "unit")]
_PYTHON = os.environ.get("UMQTT_HOME_ASSISTANT")
_BOARDS = ("pump.7", "pump_7")
_READING = {"temp_c": 20.0, "pressure_hpa": 1013.2, "supply_v": 3.31, "rssi": -61, "door_open": 1, "uptime_s": 60}
_SHOWN = {
    "us": {"temp_c": ["68.0", "°F"], "pressure_hpa": ["29.92", "inHg"]},
    "metric": {"temp_c": ["20.0", "°C"], "pressure_hpa": ["1013.2", "hPa"]},
}


@pytest.mark.skipif(not _PYTHON, reason="no Home Assistant: UMQTT_HOME_ASSISTANT=a Python that has it")
@pytest.mark.parametrize("units", _SHOWN)
def test_a_value_stays_what_it_is_until_a_reading_has_another(tmp_path: Path, units: str):
    """Planted: default(this.state), which converts 68.0 °F again at each reading that lacks the metric."""
    from app.discovery import config_topic, describe
    from test_app_discovery import _Board

    def status(name: str, online: bool, reason: str) -> list[object]:
        return [f"fleet/{name}/status", json.dumps({"online": online, "reason": reason}), True]

    def reading(name: str, metrics: dict[str, float]) -> list[object]:
        return [f"fleet/{name}/telemetry", json.dumps({"m": metrics}), False]

    with Mosquitto(tmp_path, "allow_anonymous true") as broker:
        process = subprocess.Popen(
            [str(_PYTHON), str(Path(__file__).with_name("home_assistant.py")), str(broker.port), units],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("wb"), text=True,
        )  # fmt: skip
        with process:
            assert process.stdin is not None and process.stdout is not None

            def after(*messages: list[object]) -> dict[str, list[str]]:
                process.stdin.write(json.dumps(messages) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, (tmp_path / "log").read_text()[-2000:]
                return json.loads(line)

            configured = [
                [config_topic(name, metric).decode(), describe(_Board(name), metric).decode(), True]
                for name in _BOARDS
                for metric in _READING
            ]
            found = after(*configured, *(status(name, True, "boot") for name in _BOARDS))
            assert len(found) == 2 * len(_READING), "each metric of each board is an entity of its own"
            first = after(*(reading(name, _READING) for name in _BOARDS))
            own = {metric: json.loads(describe(_Board("pump.7"), metric))["unique_id"] for metric in _READING}
            for metric, shown in _SHOWN[units].items():
                assert first[own[metric]] == shown
            for _ in range(3):
                assert after(reading("pump.7", {"rssi": -61})) == first, "a reading with gaps changes nothing"
            assert after(status("pump.7", False, "sleeping")) == first
            lost = after(status("pump.7", False, "connection lost"))
            assert {lost[one][0] for one in own.values()} == {"unavailable"}
            assert [one for one in lost if lost[one] != first[one]] == [one for one in lost if one in own.values()]
            process.stdin.write("null\n")
