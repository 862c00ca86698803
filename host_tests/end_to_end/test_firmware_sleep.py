"""A board that sleeps between readings: a wake is no boot, a power cut is one, and neither loses anything."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from paho_subscriber import Subscriber
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy.build import deployed_files
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_ID = "pump-7"
_AWAKE = "_LONGEST_AWAKE_MS = 30_000"
_SLEEP_S = 600
# Long enough for a message to be sent during the sleep.
_ASLEEP_S = 0.5


@pytest.fixture
def board(tmp_path: Path, broker: int, request: pytest.FixtureRequest) -> Iterator[VirtualBoard]:
    """Provide a board. Parameter: the longest time awake in ms, else the firmware's, for a busy machine."""
    try:
        # By its own clock it sleeps ten minutes.
        board = VirtualBoard(tmp_path / "flash.img", deepsleep_s=_ASLEEP_S)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with board:
        board.install(_files(broker, _SLEEP_S, getattr(request, "param", 30_000)))
        yield board


def _files(broker: int, sleep_s: int, longest_ms: int = 30_000) -> dict[str, bytes | Path]:
    source = (firmware_folder() / "app/sleep.py").read_text()
    assert _AWAKE in source
    settings = {
        "device_id": _ID,
        "brokers": [f"mqtt://127.0.0.1:{broker}"],
        "sleep_s": sleep_s,
        "unsigned_commands": True,
        "wifi": ["workshop"],
        "ntp_host": "",
        "interval_ms": 1000,
    }
    return {
        **deployed_files(),
        "/app/sleep.py": source.replace(_AWAKE, f"_LONGEST_AWAKE_MS = {longest_ms}").encode(),
        "/settings.json": json.dumps(settings).encode(),
    }


def _readings(subscriber: Subscriber, count: int) -> list[tuple[str, int]]:
    """Return (boot, seq) of the first `count` readings, each once."""
    assert subscriber.wait_for(lambda: len(subscriber.received) >= count)
    return [(one.boot, one.seq) for one in subscriber.received][:count]


def test_wakes_are_one_boot_until_the_power_is_cut_and_the_status_says_sleeping(
    board: VirtualBoard, subscriber: Subscriber
):
    """Planted: each wake says online."""
    board.start()
    first = _readings(subscriber, 4)
    assert {boot for boot, _ in first} == {first[0][0]}
    assert [seq for _, seq in first] == [0, 1, 2, 3]
    ups = [record["up"] for record in subscriber.records]
    assert all(later - earlier >= _SLEEP_S * 1000 for earlier, later in pairwise(ups)), ups
    assert board.lives >= 4
    # A sleeping board has announced it, so nobody takes its connection for lost.
    reasons = [status["reason"] for status in subscriber.payloads("status")]
    assert (reasons[0], set(reasons[1:])) == ("boot", {"sleeping"})
    assert all(status["online"] is False for status in subscriber.payloads("status")[1:])
    board.kill()
    board.start()

    def after() -> list[tuple[str, int]]:
        return [(one.boot, one.seq) for one in subscriber.received if one.boot != first[0][0]]

    assert subscriber.wait_for(lambda: len(after()) >= 2)
    assert [seq for _, seq in after()][:2] == [0, 1]
    assert {boot.partition("-")[0] for boot, _ in after()} == {"2"}


# A wake without a network would take half a minute.
@pytest.mark.parametrize("board", [1_500], indirect=True, ids=["awake for 1.5 s"])
def test_a_reading_that_found_no_network_goes_with_the_next(board: VirtualBoard, subscriber: Subscriber):
    """Planted: readings are published at QoS 0."""
    board.hooks(wifi=False)
    board.start()
    # Three starts without a network; the board reports none of them, so the test waits for its console.
    board.wait_for_life(3)
    assert not subscriber.records
    board.hooks(wifi=True)
    found = _readings(subscriber, 4)
    assert [seq for _, seq in found] == [0, 1, 2, 3]
    assert len({boot for boot, _ in found}) == 1


def test_a_command_that_was_sent_while_the_board_slept_is_carried_out_at_the_wake(
    board: VirtualBoard, subscriber: Subscriber
):
    """Planted: clean_session, with which the broker keeps nothing for a sleeping board."""
    board.start()
    _readings(subscriber, 1)
    eventually(lambda: board.pid == 0, "asleep")
    subscriber.publish(f"fleet/{_ID}/cmd", '{"id": "1", "cmd": "ping"}')
    subscriber.publish(f"fleet/{_ID}/cmd", '{"id": "2", "cmd": "set", "args": {"key": "sleep_s", "value": 0}}')
    assert subscriber.wait_for(lambda: len(subscriber.payloads("reply")) == 2)
    replies = subscriber.payloads("reply")
    assert [reply["ok"] for reply in replies] == [True, True], replies
    # From now on it stays awake: readings follow the interval.
    lives = board.lives
    _readings(subscriber, len(subscriber.received) + 3)
    assert board.lives == lives


@pytest.fixture
def pico(tmp_path: Path, broker: int) -> Iterator[VirtualBoard]:
    try:
        pico = VirtualBoard(tmp_path / "flash.img", board="RPI_PICO_W")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with pico:
        # Users deploy .mpy. The source of what is not used here would leave no room for the state.
        unused = "/portal/", "/lib/umqtt_robust/websocket.py"
        files = _files(broker, sleep_s=1).items()
        pico.install({name: file for name, file in files if not name.startswith(unused)})
        yield pico


def test_a_wake_of_a_pico_is_no_boot_until_the_power_is_cut_and_each_reading_arrives_once(
    pico: VirtualBoard, subscriber: Subscriber
):
    """Planted: the light sleep ends without a reset; nothing is kept."""
    pico.start()
    readings = _readings(subscriber, 4)
    assert [seq for _, seq in readings] == [0, 1, 2, 3] and len({boot for boot, _ in readings}) == 1, readings
    ups = [record["up"] for record in subscriber.records]
    assert all(later - earlier >= 1000 for earlier, later in pairwise(ups)), ups
    reasons = [status["reason"] for status in subscriber.payloads("status")]
    assert reasons[0] == "boot" and set(reasons[1:]) == {"sleeping"}
    for number in ("2", "3"):
        pico.kill()
        pico.start()
        assert subscriber.wait_for(lambda wanted=f"{number}-": wanted in {one.boot[:2] for one in subscriber.received})
    after = [(one.boot, one.seq) for one in subscriber.received if one.boot.startswith("3-")]
    assert after[0][1] == 0 and len(set(after)) == len(after)


def test_a_sleeping_pico_asks_for_the_time_once_and_keeps_it(pico: VirtualBoard, broker: int, subscriber: Subscriber):
    """Planted: the board sleeps as soon as its reading is delivered; the time is not kept over the sleep."""
    with _time_server() as port:
        settings = json.loads(_files(broker, 1)["/settings.json"]) | {"ntp_host": f"127.0.0.1:{port}"}
        pico.install({"/settings.json": json.dumps(settings).encode()})
        pico.start()
        assert subscriber.wait_for(lambda: len(subscriber.records) >= 4)
    found = subscriber.records[:4]
    assert found[0]["ts"] is None and all(record["ts"] for record in found[1:]), found
    # Readings from before the time was known are placed by the boot that all have.
    assert {record["boot"] for record in found} == {found[0]["boot"]}
    starts = [record["ts"] - record["up"] for record in found[1:]]
    assert max(starts) - min(starts) < 1000 * WAIT_LIMIT_S, starts


@contextmanager
def _time_server() -> Iterator[int]:
    """Answer SNTP requests after a second, with the time of this computer; yield the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            while request := server.recvfrom(64):
                data, address = request
                if not data:
                    return
                time.sleep(1)  # longer than it takes to deliver a reading, less than a request may wait
                now = struct.pack("!II", int(time.time()) + 2208988800, 0)
                server.sendto(b"\x24\x01" + bytes(22) + data[40:48] + now + now, address)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.sendto(b"", server.getsockname())
        thread.join()
