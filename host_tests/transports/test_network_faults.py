"""Nothing is lost on a network whose faults change by a seed: ten minutes of it with full sweeps."""

from __future__ import annotations

import os
import random
import time

import pytest
from broker_here import broker_here
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import eventually

from umqtt_robust import Client

_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_SECONDS = 600 if _FULL else 12
_NONE = {"loss": 0.0, "delay_ms": 0, "reorder": 0.0, "rate": 0, "mtu_hole": 0, "forget_after": 0}


def _fault(chance: random.Random) -> dict[str, float]:
    return chance.choice(
        [
            {"loss": chance.choice((0.05, 0.3, 1.0))},
            {"delay_ms": chance.choice((20, 200, 2000)), "reorder": chance.choice((0.0, 0.2))},
            {"rate": chance.choice((1000, 20_000)), "queue": chance.choice((3000, 200_000))},
            {"mtu_hole": chance.choice((180, 600))},
            {"forget_after": 0.5},
            {},
        ]
    )


@pytest.mark.timeout(_SECONDS + 180)
def test_every_message_arrives_in_order_whatever_the_network_does(network):
    """Planted: a lost link forgets what was in flight."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")
    line = network(seed=seed)
    got: list[int] = []
    with line.inside("server"), broker_here() as port, FaultProxy(("127.0.0.1", port), host=line.server) as server:
        watcher = Client("watcher", f"mqtt://127.0.0.1:{port}", on_message=lambda _, payload: got.append(int(payload)))
        watcher.subscribe("fleet/pump-7/telemetry", qos=1)
        eventually(lambda: watcher.poll(10) is not None and watcher.connected and watcher.subscribed)
        with line.inside("device"):
            client = Client("pump-7", server.url, clean_session=False, ack_timeout=5000, connect_timeout=5000)
            sent = 0
            ends = time.monotonic() + _SECONDS
            while time.monotonic() < ends:
                line.change(**{**_NONE, **_fault(chance)})
                until = time.monotonic() + chance.uniform(0.5, 8 if _FULL else 2)
                while time.monotonic() < min(until, ends):
                    if client.pending < 20:
                        client.publish("fleet/pump-7/telemetry", b"%d" % sent, qos=1)
                        sent += 1
                    client.poll(20)
                    watcher.poll(0)
            line.change(**_NONE)
            eventually(
                lambda: client.poll(20) is not None and watcher.poll(0) is not None and not client.pending,
                lambda: f"seed {seed}: {client.pending} of {sent} wait",
            )
            eventually(lambda: watcher.poll(20) is not None and len(set(got)) == sent, f"seed {seed}")
    # A message may come twice, but for the first time in order.
    first = list(dict.fromkeys(got))
    assert first == list(range(sent)), f"seed {seed}"
    print(f"{sent} messages, {client.reconnects} links lost, {line.counts}")
