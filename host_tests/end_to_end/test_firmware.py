"""The firmware runs as on a board: real MicroPython, its own flash, power cuts, a network that goes away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from paho_subscriber import Subscriber
from umqtt_kit.deploy.build import deployed_files
from umqtt_kit.ground_truth import ground_truth_path
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import eventually

Boot = Callable[..., VirtualBoard]
_ID = "pump-7"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[VirtualBoard]:
    ground_truth = tmp_path / "ground_truth"
    ground_truth.mkdir()
    try:
        board = VirtualBoard(
            tmp_path / "flash.img",
            env={"UMQTT_GROUND_TRUTH": str(ground_truth_path(ground_truth, _ID))},
            unique_id=b"\x02pump7",
        )
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with board:
        board.install(dict(deployed_files()))
        yield board


def _provision(board: VirtualBoard, port: int, **settings: object) -> None:
    # Room for the readings of half a minute: a broker delayed by a busy machine must not cost one.
    fixed = {"device_id": _ID, "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 50, "outbox": 600}
    values = fixed | settings
    board.install({"/settings.json": json.dumps(values).encode()})


def _seqs(records: list[dict]) -> list[int]:
    return [record["seq"] for record in records]


def _boots(subscriber: Subscriber) -> list[str]:
    """Return the boot ids in the order of their first readings."""
    return list(dict.fromkeys(record["boot"] for record in subscriber.records))


def _some_records(board, broker, subscriber) -> list[dict]:
    _provision(board, broker)
    board.start()
    assert subscriber.wait_for(lambda: len(subscriber.records) >= 20)
    board.stop()
    return subscriber.records


def test_readings_are_records_of_what_the_board_measured(board, broker, subscriber):
    """Planted: a reading raises seq by two."""
    records = _some_records(board, broker, subscriber)
    assert _seqs(records) == list(range(len(records)))
    for record in records:
        assert set(record) == {"v", "id", "boot", "seq", "ts", "up", "m"}
        assert (record["v"], record["id"]) == (1, _ID)
        assert set(record["m"]) == {"mem_free", "uptime_s", "loop_ms"}
        assert 0 < record["m"]["mem_free"] < 256 * 1024
    ups = [record["up"] for record in records]
    # Measured during the reading, which ends before the next one begins.
    for record, (up, later) in zip(records, pairwise(ups), strict=False):
        assert up // 1000 <= record["m"]["uptime_s"] <= later // 1000


@pytest.mark.tier(3)
def test_readings_come_by_the_interval(board, broker, subscriber):
    """Planted: each reading comes 10 ms before its time."""
    ups = [record["up"] for record in _some_records(board, broker, subscriber)]
    # On average no reading comes early, and readings without a delay follow the interval.
    assert (ups[-1] - ups[0]) / (len(ups) - 1) >= 45
    assert min(later - up for up, later in pairwise(ups)) <= 60


def test_every_power_cut_begins_a_boot_with_a_higher_count_and_seq_0(board, broker, subscriber):
    """Planted: the boot counter is not incremented."""
    _provision(board, broker)
    for lives in range(1, 4):
        board.start()
        assert subscriber.wait_for(lambda lives=lives: len(_boots(subscriber)) == lives)
        board.kill()
    counts = [int(boot.partition("-")[0]) for boot in _boots(subscriber)]
    assert counts == [1, 2, 3]
    assert len({boot.partition("-")[2] for boot in _boots(subscriber)}) == 3
    for boot in _boots(subscriber):
        assert min(record["seq"] for record in subscriber.records if record["boot"] == boot) == 0


def test_the_status_is_online_while_it_runs_and_the_will_says_offline_after(board, broker, subscriber):
    """Planted: the will says online."""
    _provision(board, broker)
    board.start()
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 1 and bool(subscriber.records))
    board.kill()
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 2)
    online, offline = subscriber.payloads("status")
    assert (online["online"], online["reason"]) == (True, "boot")
    assert (offline["online"], offline["reason"]) == (False, "connection lost")
    assert online["boot"] == offline["boot"] == _boots(subscriber)[0]


def test_readings_taken_while_wifi_is_away_arrive_later(board, broker, subscriber, tmp_path):
    """Planted: readings are published at QoS 0."""
    _provision(board, broker, wifi=["workshop"])
    board.hooks(wifi=False)
    board.start()
    path = ground_truth_path(tmp_path / "ground_truth", _ID)
    eventually(lambda: path.exists() and path.read_bytes().count(b"\n") > 5)
    assert not subscriber.records
    waiting = path.read_bytes().count(b"\n")
    board.hooks(wifi=True)
    assert subscriber.wait_for(lambda: len(subscriber.records) > waiting)
    records = subscriber.records
    assert _seqs(records) == list(range(len(records)))


def test_a_crash_is_kept_and_published_after_the_next_boot(board, broker, subscriber):
    """Planted: the log record of a crash has the first line of the traceback, not the last."""
    _provision(board, broker)
    board.install({"/app/telemetry.py": b"raise KeyError('pressure')"})
    board.start()
    board.wait_for("KeyError: pressure")
    board.stop()
    board.install({"/app/telemetry.py": deployed_files()["/app/telemetry.py"]})
    board.start()
    assert subscriber.wait_for(lambda: bool(subscriber.payloads("log")))
    record = subscriber.payloads("log")[0]
    assert (record["level"], record["text"]) == ("error", "KeyError: pressure")
    assert "Traceback" in record["crash"]["traceback"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"interval_ms": 1}, "settings.json: interval_ms: must be a whole number of milliseconds"),
        ({"brokers": []}, "settings.json: brokers: must be a list"),
        ({"broker": "mqtt://a"}, "settings.json: broker: unknown key"),
    ],
)
def test_a_wrong_setting_is_named_on_the_console(board, settings, named):
    """Planted: the message does not name the setting."""
    _provision(board, 1883, **settings)
    board.start()
    board.wait_for(named)
