"""From spool bytes to rows: what a broker sends is decoded exactly as a plain loop over its packets decodes it."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import RECEIVED_MS, publish_packet
from umqtt_testkit.encoder import publish

from spark_ingest.errors import DataLoss, SpoolDamaged
from spark_ingest.source import rows
from spark_ingest.source.options import Options
from spark_ingest.spool.blocks import encode_block_header, segment_path
from spark_ingest.spool.view import SpoolView

SPOOL = "ab" * 16


def by_hand(blocks: list[tuple[int, bytes]], position: int) -> list[tuple]:
    """Return (topic, payload, received_ms, qos, retain, dup, position) of every packet, decoded byte by byte."""
    found = []
    for received_ms, body in blocks:
        position += 24
        offset = 0
        while offset < len(body):
            at, length, shift = offset + 1, 0, 0
            while True:
                byte = body[at]
                at += 1
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            end = at + length
            (topic_bytes,) = struct.unpack_from(">H", body, at)
            first, payload = body[offset], at + 2 + topic_bytes
            topic = body[at + 2 : payload].decode("utf-8", "backslashreplace")
            qos = first >> 1 & 3
            content = body[payload + 2 if qos else payload : end]
            found.append((topic, content, received_ms, qos, bool(first & 1), bool(first & 8), position + offset))
            offset = end
        position += len(body)
    return found


def decoded(view: SpoolView, end: int, **options) -> list[tuple]:
    found = []
    for batch in rows.read_range(view, SPOOL, 0, 0, end, **options):
        assert batch.schema == rows.ARROW_SCHEMA
        batch.validate(full=True)
        received = batch["received_ts"].cast(pa.int64()).to_numpy() // 1000
        names = ("topic", "payload", "qos", "retain", "dup", "position")
        topic, payload, qos, retain, dup, position = (batch[name].to_pylist() for name in names)
        found += zip(topic, payload, received.tolist(), qos, retain, dup, position, strict=True)
        assert set(batch["collector"].to_pylist()) <= {view.name} and set(batch["spool"].to_pylist()) <= {SPOOL}
        assert set(batch["segment"].to_pylist()) <= {0}
    return found


def packet(topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool) -> bytes:
    return publish(topic, payload, qos, 0x1234, retain=retain, dup=dup)


# Sizes on both sides of those at which the remaining length takes one more byte.
SIZES = st.sampled_from([0, 1, 5, 110, 119, 120, 121, 122, 123, 16_370, 16_375, 16_376, 16_377, 16_380])
PACKETS = st.builds(
    packet,
    st.sampled_from([b"t", b"fleet/a/telemetry", "fleet/ü/log".encode(), b"\xff\xfe", b"x" * 300]),
    SIZES.map(lambda size: bytes(i & 255 for i in range(size))),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
BLOCKS = st.lists(st.tuples(st.integers(0, 1 << 42), st.lists(PACKETS, max_size=6)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("spool") / "north"


def write_segment(folder: Path, blocks: list[tuple[int, list[bytes]]]) -> int:
    """Write segment 0 of the spool in `folder`; return its length."""
    parts = [(ms, len(packets), b"".join(packets)) for ms, packets in blocks]
    raw = b"".join(encode_block_header(body, count, ms) + body for ms, count, body in parts)
    folder.mkdir(exist_ok=True)
    segment_path(folder, 0).write_bytes(raw)
    return len(raw)


@settings(deadline=None, max_examples=150)
@given(blocks=BLOCKS, chunk=st.sampled_from([24, 30, 500, 20_000, 1 << 20]))
def test_every_packet_is_decoded_as_a_plain_loop_decodes_it_whatever_the_chunks(folder, blocks, chunk):
    end = write_segment(folder, blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_CHUNK_BYTES", chunk)
        assert decoded(SpoolView(folder), end) == by_hand([(ms, b"".join(p)) for ms, p in blocks], 0)


@settings(deadline=None, max_examples=50)
@given(blocks=BLOCKS)
def test_a_topic_filter_leaves_exactly_the_rows_that_match(folder, blocks):
    end = write_segment(folder, blocks)
    wanted = Options({"path": "spool", "topics": "fleet/+/log,t"}).wanted
    every = decoded(SpoolView(folder), end)
    assert decoded(SpoolView(folder), end, wanted=wanted) == [r for r in every if r[0] in ("t", "fleet/ü/log")]


def test_a_flipped_bit_anywhere_is_damage_and_never_a_wrong_row(folder):
    blocks = [(RECEIVED_MS, [publish_packet("t", b"one"), publish_packet("t", b"two")]), (RECEIVED_MS, [b""])]
    end = write_segment(folder, [blocks[0], (RECEIVED_MS, [publish_packet("t", b"three")])])
    whole = segment_path(folder, 0).read_bytes()
    good = decoded(SpoolView(folder), end)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        segment_path(folder, 0).write_bytes(damaged)
        got = []
        with pytest.raises(SpoolDamaged, match=r"0000000000\.seg is damaged at byte \d+"):
            for batch in rows.read_range(SpoolView(folder), SPOOL, 0, 0, end):
                got += batch["payload"].to_pylist()
        assert got == [row[1] for row in good][: len(got)]


@pytest.mark.parametrize(
    "body",
    [
        publish_packet("t", b"x")[:-1],
        publish_packet("t", b"x") + b"\x30",
        b"\x30\xff\xff\xff\x7f\x00\x01t",
        b"\x30",
        b"\x30\x00",
        publish_packet("t", b"x") + b"\x30\x02\x00\x01",
        b"\x32\x03\x00\x01t",
    ],
)
def test_a_block_of_malformed_packets_is_damage_although_its_checksum_holds(folder, body):
    end = write_segment(folder, [(RECEIVED_MS, [body])])
    with pytest.raises(SpoolDamaged, match="damaged at byte 0"):
        decoded(SpoolView(folder), end)


def test_a_short_or_missing_segment_is_told(folder):
    end = write_segment(folder, [(RECEIVED_MS, [publish_packet("t", b"x")])])
    with pytest.raises(SpoolDamaged, match="damaged at byte"):
        decoded(SpoolView(folder), end + 24)
    segment_path(folder, 0).unlink()
    with pytest.raises(DataLoss, match="was removed before it was read"):
        decoded(SpoolView(folder), end)


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("fleet/+/telemetry", ["fleet/a/telemetry", "fleet//telemetry"], ["fleet/telemetry", "fleet/a/b/telemetry"]),
        ("fleet/#", ["fleet", "fleet/a", "fleet/a/b"], ["fleets", "$SYS/fleet"]),
        ("#", ["a", "a/b", "/"], ["$SYS/uptime"]),
        ("+/uptime", ["a/uptime"], ["$SYS/uptime", "uptime"]),
        ("$SYS/#", ["$SYS/uptime"], ["a"]),
        ("a, b/+", ["a", "b/c"], ["b", " b/c"]),
    ],
)
def test_topic_filters_match_as_in_mqtt(topic_filter, matching, others):
    wanted = Options({"path": "spool", "topics": topic_filter}).wanted
    assert list(map(wanted, matching)) == [True] * len(matching)
    assert list(map(wanted, others)) == [False] * len(others)
