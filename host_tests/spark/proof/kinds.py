"""Payloads of other kinds and sizes than the firmware's usual record, and the `ingest.toml` that reads them.

==========  =================================================================================================
``plain``   a record as JSON
``cbor``    a record as CBOR
``long``    a record with a text of up to 4 MB, some of up to 16 MB
``dense``   a record with 50,000 metrics
``maker``   a JSON object of another maker that a rule maps; it has an identity
``number``  a number as text: its place in the spool identifies it
``node``    messages of a Sparkplug node: QoS 1 may store one several times
==========  =================================================================================================
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import cbor2
from sparkplug_payloads import DOUBLE, UINT64, double, metric, payload, tagged

TOPICS = ("fleet/+/telemetry", "fleet/+/status", "fleet/+/log", "maker/+/state", "number/+/+", "spBv1.0/#")

SHARES: Mapping[str, float] = {
    "cbor": 0.05,
    "maker": 0.05,
    "number": 0.05,
    "node": 0.05,
    "long": 0.002,
    "dense": 0.001,
}
"""The share of each kind in a fleet's readings; the others are plain."""

DENSE_METRICS = 50_000

_RULES = """
[[decoder]]
topic = "maker/{device}/state"
format = "json"
metrics = { n = "values.0.n", rssi = "radio.rssi" }
boot = "session"
seq = "count"

[[decoder]]
topic = "number/{device}/{metric}"
format = "number"
"""
_NODE_RULE = """
[[decoder]]
topic = "spBv1.0/#"
format = "sparkplug"
"""
_LONG, _LONGEST, _LONGEST_SHARE = (100_000, 4_000_000), 16_000_000, 0.1
_ALIAS = 7


def rules(shares: Mapping[str, float]) -> str:
    """Return the text of `ingest.toml` for these kinds."""
    return _RULES + (_NODE_RULE if "node" in shares else "")


def choose(shares: Mapping[str, float], chance: float) -> str:
    """Return a kind. chance: a random number from 0 to 1."""
    for kind, share in shares.items():
        chance -= share
        if chance < 0:
            return kind
    return "plain"


def encode(kind: str, record: dict[str, Any], rng: random.Random) -> tuple[str, bytes]:
    """Return topic and payload of a reading with an identity; `record` is the firmware's, with one metric ``n``."""
    device, metrics = record["id"], record["m"]
    if kind == "maker":
        fields = {"session": record["boot"], "count": record["seq"], "values": [metrics], "radio": {"rssi": -60}}
        return f"maker/{device}/state", json.dumps(fields).encode()
    if kind == "cbor":
        payload = cbor2.dumps(record)
    elif kind == "long":
        longest = _LONGEST if rng.random() < _LONGEST_SHARE else rng.randint(*_LONG)
        payload = json.dumps(record | {"text": rng.randbytes(longest // 2).hex()}).encode()
    elif kind == "dense":
        many = {f"{number:x}": number % 10 for number in range(DENSE_METRICS - 1)}
        payload = json.dumps(record | {"m": metrics | many}, separators=(",", ":")).encode()
    else:
        payload = json.dumps(record | {"m": metrics | {"rssi": -61}}).encode()
    return f"fleet/{device}/telemetry", payload


class Node:
    """A Sparkplug node, which is born again now and then."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self._name = name
        self._rng = rng
        self._births = 0
        self._seq = 0
        self._at = 1_700_000_000_000

    def next(self, number: int) -> tuple[str, bytes]:
        """Return topic and payload of the next message, whose metric ``n`` is `number`."""
        self._at += 1
        if not self._births or self._rng.random() < 0.02:
            self._births, self._seq = self._births + 1, 0
            born = metric("bdSeq", datatype=UINT64, value=tagged(11, self._births))
            return self._message("NBIRTH", born, metric("n", _ALIAS, DOUBLE, double(number)))
        self._seq = (self._seq + 1) % 256
        return self._message("NDATA", metric(alias=_ALIAS, value=double(number)))

    def _message(self, kind: str, *metrics: bytes) -> tuple[str, bytes]:
        return f"spBv1.0/plant/{kind}/{self._name}", payload(self._seq, self._at, *metrics)
