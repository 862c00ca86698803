"""What waits at a broker reaches a program with 96 KB of heap: all of it, in order, once; whatever it does meanwhile.

At QoS 2, where up to 64 messages are kept until their PUBREL, it has 112 KB: objects of a 64-bit port are twice as big.
asyncio and the programs of umqtt, on what boards run: the bundle on real MicroPython. UMQTT_FULL_SWEEPS=1, as in
`make prove-client`, tries every combination.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from programs import Program
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

FULL = bool(os.getenv("UMQTT_FULL_SWEEPS"))
HOST = "127.0.0.1"
FRONTS = ("simple", "robust", "aio")
CALLBACKS = ("returns", "sleeps", "raises", "publishes at 0", "publishes at 1", "publishes at 2")
COUNTS = [1, 31, 32, 33, 64, 65, 200, 2000] if FULL else [33, 200]
SAMPLE = {
    ("mosquitto", "simple", 0, "returns", True),
    ("paired", "simple", 1, "publishes at 1", False),
    ("mosquitto", "robust", 2, "publishes at 2", False),
    ("paired", "aio", 0, "sleeps", True),
    ("mosquitto", "aio", 2, "publishes at 1", False),
}
CASES = [
    (broker, front, qos, callback, clean)
    for broker in ("mosquitto", "paired")
    for front in FRONTS
    for qos in (0, 1, 2)
    for callback in CALLBACKS
    for clean in (True, False)
]


def device(qos: int) -> list[str]:
    """The command line of a MicroPython with little heap; the bundle is what it imports."""
    try:
        return micropython_command("112K" if qos == 2 else "96K")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    Bundle(library_folder()).compile(folder)
    return folder


@pytest.fixture
def broker_port(request: pytest.FixtureRequest, mosquitto) -> Iterator[int]:
    if request.param == "mosquitto":
        yield mosquitto("max_queued_messages 0")
        return
    command = [sys.executable, "-m", "umqtt_broker", "-p", "0", "--store", ":memory:"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().rsplit(":", 1)[1])
        process.terminate()


def publish(port: int, qos: int, payloads: list[bytes]) -> None:
    """Publish them in order; returns when the broker has them all."""
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(10)  # above 20 at QoS 2 mosquitto 2.0.11 loses some
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(HOST, port)
    client.loop_start()
    assert connected.wait(WAIT_LIMIT_S)
    for payload in payloads:
        client.publish("in/x", payload, qos)
    client.publish("end", b"", 1 if qos < 2 else 2).wait_for_publish(WAIT_LIMIT_S)
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize(
    ("broker_port", "front", "qos", "callback", "clean"),
    [case for case in CASES if FULL or case in SAMPLE],
    indirect=["broker_port"],
)
def test_everything_that_waits_is_taken_in_order_and_once(
    broker_port, bundle, tmp_path, monkeypatch, front, qos, callback, clean
) -> None:
    # Planted: the inbox takes everything that comes, or drops what does not fit.
    monkeypatch.setenv("UMQTT_DEVICE_LIBRARY", str(bundle))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    flash = str(tmp_path / "flash") if front == "aio" and not clean and qos else None
    # In a session that the broker forgets, what cannot be kept cannot be left to it: at QoS 2 all that comes before the
    # first PUBREL, for which mosquitto 2.0.11 and the paired broker take no window of 20 or less.
    answers = callback in ("publishes at 1", "publishes at 2")
    counts = [count for count in COUNTS if not clean or qos < (1 if answers else 2) or count <= 65]
    program = Program(device(qos), "waiting.py", {
        "port": broker_port, "front": front, "qos": qos, "callback": callback, "counts": counts, "clean": clean,
        "gate": str(gate), "flash": flash,
    })  # fmt: skip
    try:
        for count in counts:
            program.until("ready")
            publish(broker_port, qos, [b"%d " % i + bytes(60) for i in range(count)])
            gate.write_bytes(b"go")
            taken = program.until("taken")
            assert taken["ordered"], taken
            assert taken["taken"] + taken["discarded"] == count, taken
            if qos or not answers:
                assert taken["discarded"] == 0, taken
            else:  # what came before the answer and found no room; a broker drops it too
                assert taken["taken"] >= min(count, 32), taken
        program.until("done")
    finally:
        program.kill()


@pytest.mark.parametrize(("broker_port", "front"), [("mosquitto", front) for front in FRONTS], indirect=["broker_port"])
def test_a_message_larger_than_the_heap_is_raised_by_name_and_the_next_one_comes(
    broker_port, bundle, tmp_path, monkeypatch, front
) -> None:
    # Planted: it is acknowledged and nothing said; what had come of it stays in memory.
    monkeypatch.setenv("UMQTT_DEVICE_LIBRARY", str(bundle))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    program = Program(device(1), "waiting.py", {
        "port": broker_port, "front": front, "qos": 1, "callback": "returns", "counts": [3, 1], "clean": True,
        "gate": str(gate),
    })  # fmt: skip
    try:
        program.until("ready")
        publish(broker_port, 1, [b"0 ", bytes(300_000), b"1 "])
        gate.write_bytes(b"go")
        taken = program.until("taken")
        assert taken["too_large"] == [["b'in/x'", 300_000]] or taken["too_large"] == [["in/x", 300_000]], taken
        assert taken["free"] > 25_000, taken
        program.until("ready")
        publish(broker_port, 1, [b"2 " + bytes(4000)])
        gate.write_bytes(b"go")
        assert len(program.until("taken")["too_large"]) == 1
        program.until("done")
    finally:
        program.kill()
