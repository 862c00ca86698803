"""Programs in 36 styles do with umqtt_robust.simple and .robust what they do with umqtt.simple and umqtt.robust.

umqtt_styles.json has what each gets, catches and publishes with those of micropython-lib (August 2026, ee4bb8ff). With
UMQTT_PEERS=DIR, where DIR/umqtt holds these, they run too, and must do the same.
"""

from __future__ import annotations

import json
import os
import queue
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from programs import Program, command_of
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.tier(1)

HOST = "127.0.0.1"
WANTED = json.loads((Path(__file__).parent / "umqtt_styles.json").read_text())
PEERS = os.environ.get("UMQTT_PEERS", "")
# What docs/migrate.md says about it.
DIFFERENT = {"subscribe_without_a_callback": ["InvalidArgument"]}


def results(command: list[str], package: str, port: int, closed: int, path: str = "") -> tuple[dict, dict]:
    """Run all styles; return what each got, and the messages that arrived at the broker by topic, in order."""
    arrived: queue.Queue[tuple[str, str, bool]] = queue.Queue()
    ready: queue.Queue[None] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda c, u, one: arrived.put((one.topic, one.payload.decode("latin1"), one.retain))
    client.on_subscribe = lambda *_: ready.put(None)
    client.connect(HOST, port)
    client.loop_start()
    try:
        client.subscribe("styles/#", 1)
        ready.get(timeout=WAIT_LIMIT_S)
        config = {"package": package, "server": HOST, "port": port, "closed": closed}
        program = Program(command, "umqtt_styles.py", config, path)
        try:
            got = {event["name"]: event["got"] for event in program.finish()[:-1]}
        finally:
            program.kill()
        messages: dict[str, list[Any]] = {}
        wanted = sum(map(len, WANTED["arrives"].values()))
        while wanted > 0 or not arrived.empty():
            topic, payload, retain = arrived.get(timeout=WAIT_LIMIT_S)
            messages.setdefault(topic, []).append([payload if len(payload) < 100 else len(payload), retain])
            wanted -= 1
        return got, messages
    finally:
        client.disconnect()
        client.loop_stop()


def test_ours(interpreter, mosquitto, closed_port) -> None:
    """Planted: wait_msg() returns 0x30 for each message, also for one that was retained."""
    got, messages = results(interpreter, "umqtt_robust", mosquitto(), closed_port)
    assert got == WANTED["got"] | DIFFERENT
    assert messages == WANTED["arrives"]


@pytest.mark.skipif(not Path(PEERS, "umqtt").is_dir(), reason="the originals are not here: set UMQTT_PEERS")
def test_the_originals(mosquitto, closed_port) -> None:
    try:
        command = command_of("micropython")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    got, messages = results(command, "umqtt", mosquitto(), closed_port, f"{PEERS}:")
    assert got == WANTED["got"]
    assert messages == WANTED["arrives"]
