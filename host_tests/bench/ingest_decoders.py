"""The case of the ingestion's bench that compares JSON of other devices with our own format: CPU time a reading."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from bench_rows import Row
from ingest_plan import DECODE_DEFAULT, DECODE_MAPPED, OWN_FORMAT, Scale, row

from spark_ingest.decoders.rules import Rules, load
from spark_ingest.pipeline.decode.messages import part
from spark_ingest.pipeline.deduplicate.dedup import Seen
from spark_ingest.pipeline.deduplicate.silver import judge
from spark_ingest.source.rows import ARROW_SCHEMA
from spark_ingest.tables.delta import Delta
from spark_ingest.tables.schemas import SILVER_SCHEMA

_RULES = """
[[decoder]]
topic = "mapped/{device}"
format = "json"
metrics = { temp_c = "temperature", humidity = "humidity", rssi = "linkquality" }
time = "last_seen"

[[decoder]]
topic = "every/{device}"
format = "json"
time = "last_seen"
"""
_DEVICES = 200
_PAYLOAD = '{"battery":97,"humidity":44.7,"linkquality":120,"temperature":%d.5,"last_seen":%d}'


def decoder_rows(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield microseconds of CPU a reading, from messages to rows of silver, each beside that of our own format."""
    (folder / "ingest.toml").write_text(_RULES)
    rules = Rules(False, load(folder / "ingest.toml"))
    silver = Delta(folder / "silver", SILVER_SCHEMA, None)
    kinds = {
        "": _messages(scale.batch, "fleet/d{}/telemetry", _record),
        DECODE_MAPPED: _messages(scale.batch, "mapped/d{}", lambda i: _PAYLOAD % (i % 30, 1_795_000_000_000 + i)),
        DECODE_DEFAULT: _messages(scale.batch, "every/d{}", lambda i: _PAYLOAD % (i % 30, 1_795_000_000_000 + i)),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(3 + scale.repetitions):
        for kind, messages in kinds.items():
            begun = time.process_time()
            found = part(messages, rules)
            judge(found.readings, found.unnumbered, Seen(), silver)
            best[kind] = min(best[kind], (time.process_time() - begun) / scale.batch * 1e6)
    for kind in (DECODE_MAPPED, DECODE_DEFAULT):
        yield row(kind, best[kind], best[""], OWN_FORMAT)


def _record(i: int) -> str:
    content = {"v": 1, "id": f"d{i % _DEVICES}", "boot": "17-9f3a2c5d8e1b4a70", "seq": i // _DEVICES}
    content |= {
        "ts": 1_795_000_000_000 + i,
        "up": 912_345,
        "m": {"temp_c": i % 30 + 0.5, "humidity": 44.7, "rssi": -61},
    }
    return json.dumps(content, separators=(",", ":"))


def _messages(count: int, topic: str, payload: Callable[[int], str]) -> pa.Table:
    rows = [
        {
            "topic": topic.format(i % _DEVICES),
            "payload": payload(i).encode(),
            "qos": 1,
            "retain": False,
            "received_ts": 1_795_000_000_000_000 + i * 1000,
            "dup": False,
            "collector": "north",
            "spool": "00" * 16,
            "segment": 0,
            "position": i * 150,
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
