"""Laws of the byte stream: however it is cut into reads and groups, spool and acknowledgements are the same."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spark_helpers import publish_packet

from spark_ingest.collector import connection as connection_module
from spark_ingest.collector.config import CollectorConfig
from spark_ingest.collector.connection import Connection
from spark_ingest.collector.counters import Counters
from spark_ingest.collector.disk_quota import DiskQuota
from spark_ingest.collector.wire import Received, split
from spark_ingest.spool.access import LocalSpools
from spark_ingest.spool.blocks import checked_blocks
from spark_ingest.spool.writer import Spool

PUBLISHES = st.builds(
    publish_packet,
    st.sampled_from(["fleet/a/telemetry", "fleet/b/status", "t"]),
    st.binary(max_size=200),
    st.integers(1, 65535),
    qos=st.sampled_from([0, 1]),
)
PINGRESP = b"\xd0\x00"


class Bytes:
    """A link that yields prepared pieces, one per read; None means that nothing is available yet."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.pieces = list(pieces)
        self.sent = b""

    def wait(self, _timeout: float, _wake_fd: int) -> bool:
        return bool(self.pieces)

    def receive(self, buffer: bytearray, limit: int) -> bool:
        piece = self.pieces.pop(0) if self.pieces else None
        if piece is None:
            return False
        if len(piece) > limit:
            self.pieces.insert(0, piece[limit:])
        buffer += piece[:limit]
        return True

    def queue(self, data: bytes) -> None:
        self.sent += data


class Kept:
    """A spool in memory, for cases that are tried many hundred times."""

    def __init__(self) -> None:
        self.data = b""
        self.messages = 0

    def append(self, data: bytes, count: int, _received_ms: int, _level: int = 4) -> None:
        self.data += data
        self.messages += count


def run(link: Bytes, spool: Spool | Kept, quota: DiskQuota, config: CollectorConfig) -> Counters:
    counters = Counters()
    options = {"stopping": lambda: not link.pieces, "wake_fd": -1}
    connection = Connection(link, spool, quota, config, counters, **options)
    connection.collect()
    connection.drain()
    return counters


def collected(folder: Path, pieces: list[bytes | None], group_bytes: int) -> tuple[bytes, bytes, int]:
    """Return (the PUBLISH packets in the spool, what was sent, messages counted)."""
    config = CollectorConfig("mqtt://127.0.0.1", folder, "north", group_bytes=group_bytes, group_ms=0)
    link = Bytes(pieces)
    with Spool(folder / "north", segment_bytes=500, sync=lambda _fd: None) as spool:
        counters = run(link, spool, DiskQuota(folder / "north", max_bytes=0, min_free_bytes=0), config)
        durable = spool.durable
    view = LocalSpools(folder).view("north")
    kept = b""
    for segment in range(durable.segment + 1):
        data = view.read(segment, 0, view.segment_end(segment, durable))
        kept += b"".join(bytes(body) for _, body in checked_blocks(data, 0))
    return kept, link.sent, counters.messages


def expected(packets: list[bytes]) -> tuple[bytes, bytes, int]:
    publishes = [packet for packet in packets if packet[0] & 0xF0 == 0x30]
    pubacks = []
    for packet in publishes:
        if packet[0] & 6:
            body = 2 if packet[1] < 128 else 3
            name = body + 2 + int.from_bytes(packet[body : body + 2])
            pubacks.append(b"\x40\x02" + packet[name : name + 2])
    return b"".join(publishes), b"".join(pubacks), len(publishes)


def test_every_single_split_of_a_stream_gives_the_same_spool(tmp_path):
    quota = DiskQuota(tmp_path, max_bytes=0, min_free_bytes=0)
    config = CollectorConfig("mqtt://x", tmp_path, "n", group_ms=0)
    packets = [
        publish_packet("fleet/a/telemetry", b"one", 1),
        PINGRESP,
        publish_packet("fleet/a/telemetry", bytes(140), 2),
        publish_packet("t", b"", qos=0),
        publish_packet("fleet/b/status", b"x" * 5, 65535, dup=True),
    ]
    stream = b"".join(packets)
    for cut in range(len(stream) + 1):
        pieces: list[bytes | None] = [piece for piece in (stream[:cut], stream[cut:]) if piece]
        for pause in ([], [None]):
            between = list(itertools.chain.from_iterable((piece, *pause) for piece in pieces))
            link, kept = Bytes(between), Kept()
            run(link, kept, quota, config)
            assert (kept.data, link.sent, kept.messages) == expected(packets), f"cut at {cut}, {pause}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PUBLISHES | st.just(PINGRESP), max_size=25), st.data(), st.sampled_from([1, 7, 100, 1 << 20]))
def test_any_cutting_into_reads_and_groups_gives_the_same_spool_and_acknowledgements(packets, data, group_bytes):
    stream = b"".join(packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces: list[bytes | None] = []
    for a, b in itertools.pairwise([0, *cuts, len(stream)]):
        pieces += [stream[a:b]] if a < b else [None]
    with tempfile.TemporaryDirectory() as folder:
        assert collected(Path(folder), pieces, group_bytes) == expected(packets)


def test_a_large_message_is_gone_through_once_and_not_at_every_read(tmp_path, monkeypatch):
    packet = publish_packet("t", bytes(5 << 20), 7)
    stream = PINGRESP + packet + publish_packet("t", b"after", 8)
    calls = []

    def counted(buffer: bytearray, level: int) -> Received:
        calls.append(len(buffer))
        return split(buffer, level)

    monkeypatch.setattr(connection_module, "split", counted)
    pieces: list[bytes | None] = [stream[i : i + 10_000] for i in range(0, len(stream), 10_000)]
    kept, sent, messages = collected(tmp_path, pieces, 10_000)
    assert kept == stream[2:] and messages == 2 and len(sent) == 8
    assert len(calls) <= 4
