"""The bridge's store alone: what it acknowledges to the local session once the remote broker has acknowledged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from umqtt_broker.bridge.session_store import BridgeStore
from umqtt_broker.protocol.packets import PUBACK, PUBCOMP, PUBREC

pytestmark = pytest.mark.tier(0)


@pytest.mark.parametrize(
    ("qos", "pubrec_came", "handed_on"),
    [(1, False, [PUBACK]), (2, True, [PUBREC, PUBCOMP]), (2, False, [PUBREC, PUBCOMP])],
)
def test_the_local_session_gets_every_step_of_its_qos(qos: int, pubrec_came: bool, handed_on: list[int]) -> None:
    # Planted: PUBCOMP without PUBREC, if a remote broker without QoS 2 has answered with PUBACK.
    acknowledged: list[tuple[int, int]] = []
    local: Any = SimpleNamespace(
        session=SimpleNamespace(subscriptions={}, inbound=[]),
        released=[],
        acknowledge=lambda first_byte, packet_id: acknowledged.append((first_byte, packet_id)),
    )
    store = BridgeStore(local, 4, True, lambda *_: None)
    store.put(0, 7, qos << 1, b"t", b"x", 0)
    if pubrec_came:
        store.change(0, 0x44, 1)
    store.tombstone(0)
    assert acknowledged == [(first_byte, 7) for first_byte in handed_on]
