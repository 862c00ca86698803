"""Every reading that a simulated device made reaches a subscriber, whatever happens to the network."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from umqtt_kit.ground_truth import read_ground_truth
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

pytestmark = pytest.mark.tier(1)


def _command(broker: str, folder: Path, devices: int) -> list[str]:
    return [
        sys.executable, "-m", "umqtt_kit.fleet", "--devices", str(devices), "--interval-ms", "50", "--broker", broker,
        "--ground-truth", str(folder / "ground_truth"), "--status", str(folder / "status.json"),
    ]  # fmt: skip


def _start_fleet(broker: str, folder: Path, devices: int) -> subprocess.Popen[str]:
    command = _command(broker, folder, devices)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _stop(fleet: subprocess.Popen[str]) -> None:
    fleet.send_signal(signal.SIGTERM)
    _, notes = fleet.communicate(timeout=WAIT_LIMIT_S)
    assert fleet.returncode == 0, notes


def test_every_reading_made_arrives_across_cuts(broker, subscriber, tmp_path):
    """Planted: readings are published at QoS 0."""
    with FaultProxy(("127.0.0.1", broker), seed=3) as network:
        fleet = _start_fleet(network.url, tmp_path, devices=8)
        assert fleet.stdout is not None
        assert fleet.stdout.readline() == "connected 8 devices\n"
        for cuts in range(1, 4):
            before = subscriber.received.total()
            assert subscriber.wait_for(lambda before=before: subscriber.received.total() > before + 40)
            # What came may have been under way since the last cut, with no device back yet.
            eventually(lambda cuts=cuts: network.cut(reset=cuts % 2 == 0))
        _stop(fleet)
    made = set(read_ground_truth(tmp_path / "ground_truth"))
    assert subscriber.wait_for(lambda: made <= subscriber.received.keys())
    assert subscriber.received.keys() == made
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["made"], status["pending"], status["state"]) == (len(made), 0, "stopped")


def test_a_record_is_whole_and_every_number_in_it_is_measured(broker, subscriber, tmp_path):
    """Planted: the CPU time is invented."""
    fleet = _start_fleet(f"mqtt://127.0.0.1:{broker}", tmp_path, 3)
    assert subscriber.wait_for(lambda: len(subscriber.records) > 20)
    _stop(fleet)
    assert subscriber.wait_for(lambda: sum(not status["online"] for status in subscriber.payloads("status")) >= 3)
    assert len({record["boot"] for record in subscriber.records}) == 3
    for record in subscriber.records:
        assert set(record) == {"v", "id", "boot", "seq", "ts", "up", "m"}
        count, _, random_bits = record["boot"].partition("-")
        assert count == "1" and len(bytes.fromhex(random_bits)) == 8
        assert set(record["m"]) == {"late_ms", "outbox", "cpu_s", "rss_kib"}
    for device in {record["id"] for record in subscriber.records}:
        own = [record for record in subscriber.records if record["id"] == device]
        assert [record["seq"] for record in own] == list(range(len(own)))
        assert [record["up"] for record in own] == sorted(record["up"] for record in own)
        # The process's CPU time never decreases, which an invented number would not respect.
        assert [record["m"]["cpu_s"] for record in own] == sorted(record["m"]["cpu_s"] for record in own)


def test_online_and_offline_are_said_with_the_reason(broker, subscriber, tmp_path):
    """Planted: a device that is stopped gives the reason of the will."""
    fleet = _start_fleet(f"mqtt://127.0.0.1:{broker}", tmp_path, 1)
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 1)
    _stop(fleet)
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 2)
    assert [(s["online"], s["reason"]) for s in subscriber.payloads("status")] == [
        (True, "connected"),
        (False, "stopped"),
    ]


def test_a_killed_fleet_is_said_to_be_offline_by_its_wills(broker, subscriber, tmp_path):
    """Planted: the will gives the reason of a stopped device."""
    fleet = _start_fleet(f"mqtt://127.0.0.1:{broker}", tmp_path, 2)
    assert fleet.stdout is not None
    fleet.stdout.readline()
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 2)
    fleet.kill()
    fleet.communicate()
    assert subscriber.wait_for(lambda: len(subscriber.payloads("status")) == 4)
    assert {status["reason"] for status in subscriber.payloads("status")[2:]} == {"connection lost"}


def test_more_devices_than_files_may_be_open_is_refused_before_it_starts(tmp_path):
    """Planted: the limit of open files is not checked."""
    limited = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *_command("mqtt://127.0.0.1:1", tmp_path, 100)]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert "ulimit -n" in ended.stderr and len(ended.stderr.splitlines()) == 1
