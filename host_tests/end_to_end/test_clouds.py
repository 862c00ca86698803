"""The firmware reaches each cloud with that cloud's preset alone: every reading arrives, however the link is cut."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from at_cloud import DEVICE, provisioned
from broker_here import broker_here
from umqtt_kit.deploy.build import deployed_files
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.cloud_broker import CloudBroker
from umqtt_testkit.cloud_rules import CLOUDS
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import NotInTime, eventually

# How many readings must arrive, in ms between two. Adafruit IO takes 30 data points a minute, three metrics each.
_PACE = {"adafruitio": (4, 3000)}
_LET_BE = {"one CONNECT a second for a client id", "at most 10 messages a second"}


def readings(name: str, cloud: CloudBroker) -> list[str]:
    """Return what identifies each reading that has arrived: its seq, or where a cloud keeps none, its uptime."""
    found = []
    for message in cloud.messages:
        if "status" in message.topic or "attributes" in message.topic or "log" in message.topic:
            continue
        values = json.loads(message.payload)
        if name == "thingsboard" and "values" in values:
            found.append(values["ts"])
        elif name == "adafruitio" and "feeds" in values:
            found.append(values["feeds"]["uptime_s"])
        elif "seq" in values:
            found.append(values["seq"])
    return found


@pytest.mark.parametrize("name", CLOUDS)
def test_every_reading_reaches_the_cloud_over_cut_links_and_a_command_is_answered(name: str, tmp_path: Path):
    """Planted: messages keep their topics; the boot's id is not in the id of a request."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    count, interval_ms = _PACE.get(name, (40, 100))
    with broker_here() as upstream, CloudBroker(name, upstream=upstream) as cloud:
        with FaultProxy(("127.0.0.1", cloud.port), seed=seed) as proxy:
            try:
                board = VirtualBoard(tmp_path / "flash.img", unique_id=b"\x02pump7")
            except MicroPythonMissing as missing:
                pytest.skip(str(missing))
            chance = random.Random(seed)
            for _ in range(3):
                proxy.cut_next(chance.randrange(100, 4000), chance.choice(("up", "down")), reset=chance.random() < 0.5)
            with board:
                board.install(dict(deployed_files()))
                board.install(provisioned(name, cloud, proxy.port, interval_ms=interval_ms, outbox=200))
                board.start()
                _patiently(lambda: len(set(readings(name, cloud))) >= count)
                topic, order = _command(name)
                cloud.send(topic, order)
                _patiently(lambda: any(b'"ok": true' in message.payload for message in cloud.messages))
                board.stop()
        found = readings(name, cloud)
        if name in ("aws", "azure", "hivemq", "emqx"):
            assert sorted(set(found)) == list(range(max(found) + 1)), f"seed {seed}"
        refused = {rule.text for rule, _ in cloud.refusals} - _LET_BE
        assert not refused, f"seed {seed}"


def _patiently(condition: Callable[[], bool]) -> None:
    # A cloud's rate of messages a minute, after links that were cut, takes longer than a test may wait as a rule.
    with contextlib.suppress(NotInTime):
        eventually(condition)
        return
    eventually(condition)


def _command(name: str) -> tuple[str, bytes]:
    order = b'{"id":"c1","cmd":"ping","args":{}}'
    if name == "azure":
        return f"devices/{DEVICE}/messages/devicebound/", order
    if name == "thingsboard":
        return "v1/devices/me/rpc/request/1", b'{"method":"ping","params":{}}'
    if name == "adafruitio":
        return f"ada/feeds/{DEVICE}.cmd", order
    return f"fleet/{DEVICE}/cmd", order
