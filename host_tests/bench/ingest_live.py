"""The cases of the ingestion's bench that include a broker: collector, live, latency, bytes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from bench_rows import Row
from ingest_lab import Blocks, Commits, Lab, Process, halt, segments, wait_for
from ingest_load import Publisher, packets, readings
from ingest_plan import (
    BULK_BYTES,
    COLLECTOR,
    LIVE,
    MQ_BRIDGE,
    P50,
    P95,
    PAHO_DURABLE,
    PAHO_PARQUET,
    START,
    TRICKLE_BYTES,
    WIRE,
    Scale,
    row,
)

_DEVICES = 1000
_RATE = 1000
_REST_S = 0.3


def collector_rows(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the collector from a preloaded queue, in turn with paho from its own queue."""
    port = lab.broker()
    spool = lab.new_folder("spool")
    lab.collector(port, spool, "--topic", "fleet/+/telemetry").stop()  # its session stays
    ours = packets(readings(scale.collected, _DEVICES))
    theirs = packets(readings(scale.collected_by_peer, _DEVICES, "peer"))
    if with_peers:
        _paho(lab, port, 0).stop()
    rates: dict[str, list[float]] = {"ours": [], PAHO_DURABLE: []}
    for number in range(scale.repetitions + 1):
        _preload(port, ours)
        measured = {"ours": _collect(lab, port, spool, scale.collected)}
        if with_peers:
            _preload(port, theirs)
            told = json.loads(_paho(lab, port, scale.collected_by_peer).line("{"))
            measured[PAHO_DURABLE] = told["messages"] / told["seconds"]
        for name, rate in measured.items() if number else ():  # the first round warms disk and code
            rates[name].append(rate)
    medians = {name: statistics.median(each) for name, each in rates.items() if each}
    yield row(COLLECTOR, medians["ours"], medians.get(PAHO_DURABLE), PAHO_DURABLE)
    blocks = Blocks(segments(spool / "bench"))
    yield row(BULK_BYTES, blocks.size, blocks.wire, WIRE)


def _preload(port: int, sent: list[bytes]) -> None:
    publisher = Publisher(port)
    publisher.blast(sent)
    publisher.close()


def _paho(lab: Lab, port: int, count: int) -> Process:
    file = lab.new_folder("paho") / "messages"
    return lab.peer("paho_durable", port, "paho-durable", "peer/+/telemetry", file, count)


def _collect(lab: Lab, port: int, spool: Path, count: int) -> float:
    """Return the messages a second for the `count` that wait in the broker."""
    folder = spool / "bench"
    before = segments(folder)
    process = lab.collector(port, spool, "--topic", "fleet/+/telemetry")
    wait_for(lambda: _rests(folder) and Blocks(segments(folder) - before).messages >= count, "all is in the spool")
    end = (folder / "pos").stat().st_mtime_ns / 1e9
    process.stop()
    # From the receipt of the first group until the last was durable; the first group is not counted.
    began, messages = Blocks(segments(folder) - before).first
    return (count - messages) / (end - began)


def _rests(folder: Path) -> bool:
    """Return whether the spool has stopped growing; reading it earlier would cost the collector its processor."""
    return time.time() - (folder / "pos").stat().st_mtime_ns / 1e9 > _REST_S


def live_rows(lab: Lab, scale: Scale, with_peers: bool) -> Iterator[Row]:
    """Measure the start; publisher, broker, collector and Spark at once on this machine; the delay at a fixed rate."""
    yield row(START, statistics.median(_ready_s(lab) for _ in range(scale.repetitions)))
    peers = {PAHO_PARQUET: "paho_parquet", MQ_BRIDGE: "mq_bridge_parquet"} if with_peers else {}
    if not lab.has("mq_bridge"):
        peers.pop(MQ_BRIDGE, None)
    port = lab.broker()
    spool, tables = lab.new_folder("spool"), lab.new_folder("tables")
    ours = [
        lab.collector(port, spool, "--topic", "fleet/+/telemetry"),
        lab.pipeline(spool, tables, lab.new_folder("checkpoint")),
    ]
    commits = Commits(tables / "silver")
    rates: dict[str, list[float]] = {"ours": [], **{name: [] for name in peers}}
    made = 0
    for number in range(scale.repetitions + 1):
        measured = {"ours": _live(port, commits, packets(readings(scale.live, _DEVICES, first=made)))}
        made += scale.live
        for name, program in peers.items():
            halt(ours, on=True)
            measured[name] = _live_peer(lab, program, packets(readings(scale.live, _DEVICES)))
            halt(ours, on=False)
        for name, rate in measured.items() if number else ():
            rates[name].append(rate)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name in peers or ("",):
        yield row(LIVE, medians["ours"], medians.get(name), name)
    yield from _latency(port, spool, tables, commits, scale, made)


def _ready_s(lab: Lab) -> float:
    """Return the seconds from the start of a pipeline until its query runs."""
    begun = time.perf_counter()
    process = lab.pipeline(lab.new_folder("spool"), lab.new_folder("tables"), lab.new_folder("checkpoint"))
    ready = time.perf_counter() - begun
    process.stop()
    return ready


def _live(port: int, commits: Commits, sent: list[bytes]) -> float:
    """Return the readings a second, from the first PUBLISH until the last row is visible in silver."""
    wanted = commits.look() + len(sent)
    publisher = Publisher(port)
    begun = time.time()
    publisher.blast(sent)
    publisher.close()
    wait_for(lambda: commits.look() >= wanted, "all readings are in silver")
    return len(sent) / (commits.commits[-1][0] - begun)


def _live_peer(lab: Lab, program: str, sent: list[bytes]) -> float:
    port = lab.broker()
    peer = lab.peer(program, port, "fleet/+/telemetry", lab.new_folder("parquet"), len(sent))
    publisher = Publisher(port)
    begun = time.time()
    publisher.blast(sent)
    publisher.close()
    seconds = json.loads(peer.line("{"))["at"] - begun
    peer.stop()
    return len(sent) / seconds


def _latency(port: int, spool: Path, tables: Path, commits: Commits, scale: Scale, first: int) -> Iterator[Row]:
    before = segments(spool / "bench")
    earlier, seen = len(commits.commits), commits.look()
    size = Blocks(before)
    publisher = Publisher(port)
    made = publisher.steady(_RATE, scale.latency_s, _DEVICES, first)
    publisher.close()
    wait_for(lambda: commits.look() >= seen + len(made), "all readings are in silver")
    delays = sorted(
        visible - made[device, seq]
        for visible, paths in commits.commits[earlier:]
        for path in paths
        for device, seq in _identities(tables / "silver" / path)
        if (device, seq) in made
    )
    yield row(P50, delays[len(delays) // 2])
    yield row(P95, delays[len(delays) * 95 // 100])
    after = Blocks(segments(spool / "bench"))
    yield row(TRICKLE_BYTES, after.size - size.size, after.wire - size.wire, WIRE)


def _identities(path: Path) -> Iterator[tuple[str, int]]:
    table = pq.ParquetFile(path).read(columns=["device_id", "seq"])
    return zip(table["device_id"].to_pylist(), table["seq"].to_pylist(), strict=True)
