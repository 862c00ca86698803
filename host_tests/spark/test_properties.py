"""Properties of MQTT 5 from the broker to the rows: kept as they came, never shown wrong, and nothing else changes."""

import itertools
import os
import random
import shutil
from pathlib import Path

import paho.mqtt.client as paho
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from spark_helpers import RECEIVED_MS, collector_process, publish_packet
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.durable import read_checked_json
from spark_ingest.errors import SpoolDamaged
from spark_ingest.source import rows
from spark_ingest.spool import blocks
from spark_ingest.spool.blocks import BLOCK_HEADER, encode_block_header, segment_path
from spark_ingest.spool.messages import Message, messages, verify
from spark_ingest.spool.properties import MOST_REPEATED, NO_PROPERTIES, Properties, decode_properties, variable_integer
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool

SEEDS = range(300 if os.environ.get("UMQTT_FULL_SWEEPS") else 30)
TEXTS = ("", "site", "ü", "a\tb\x1b[2J\u0085", "mqtt.content_type", "x" * 300, "\U0001f600")


def random_properties(rng: random.Random) -> tuple[list[bytes], Properties]:
    """Return properties as they are sent, in any order, and what they are decoded to."""
    pairs = [(rng.choice(TEXTS), rng.randbytes(rng.randrange(4))) for _ in range(rng.randrange(4))]
    identifiers = [rng.choice((1, 127, 128, 268_435_455)) for _ in range(rng.randrange(3))]
    single = {
        "payload_format_indicator": rng.randrange(2),
        "message_expiry_interval": rng.randrange(1 << 32),
        "content_type": rng.choice(TEXTS),
        "response_topic": rng.choice(TEXTS),
        "correlation_data": rng.randbytes(rng.randrange(5)),
    }
    single = {name: value for name, value in single.items() if rng.randrange(2)}
    parts = [("user_property", (key.encode(), value)) for key, value in pairs]
    parts += [("subscription_identifier", number) for number in identifiers]
    # Repeated properties keep their order; the others may stand anywhere between them.
    for name, value in [*single.items(), *[("topic_alias", 7)] * rng.randrange(2)]:
        parts.insert(rng.randint(0, len(parts)), (name, value.encode() if isinstance(value, str) else value))
    encoded = [encoder.one_property(name, value) for name, value in parts]
    return encoded, Properties(pairs or None, subscription_identifiers=identifiers or None, **single)


def with_properties(topic: str, payload: bytes, raw: bytes, qos: int = 1, packet_id: int = 1) -> bytes:
    return encoder.publish(topic.encode(), payload, qos, packet_id, properties=encoder.variable(len(raw)) + raw)


SITE = encoder.one_property("user_property", (b"site", b"north"))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_properties_are_read_back_and_every_cut_of_them_gives_a_part_and_the_rest(seed):
    """Planted: a repeated key that replaces the earlier one; a rest that begins one byte late."""
    print(f"seed {seed}")
    encoded, wanted = random_properties(random.Random(seed))
    raw = b"".join(encoded)
    assert decode_properties(raw) == wanted
    ends = list(itertools.accumulate(map(len, encoded), initial=0))
    for cut in range(len(raw)):
        found = decode_properties(raw[:cut])
        headers = found.headers or []
        assert headers == (wanted.headers or [])[: len(headers)], cut
        assert all(one in (None, whole) for one, whole in zip(found[1:6], wanted[1:6], strict=True)), cut
        complete = max(end for end in ends if end <= cut)
        assert found == decode_properties(raw[:complete])._replace(undecoded=raw[complete:cut] or None), cut


@given(st.binary(max_size=200))
def test_any_bytes_are_properties_of_some_kind(raw):
    assert raw.endswith(decode_properties(raw).undecoded or b"")


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"\x26\x00\x01\xff\x00\x01\xfe", Properties([("\\xff", b"\xfe")])),
        (b"\x03\x00\x02\xc3\x28", Properties(content_type="\\xc3(")),
        (b"\x01\xc8", Properties(payload_format_indicator=200)),
        (SITE + b"\x99" + SITE, Properties([("site", b"north")], undecoded=b"\x99" + SITE)),
        (b"\x01\x01\x01\x00", Properties(payload_format_indicator=1, undecoded=b"\x01\x00")),
        (b"\x11\x00\x00\x00\x01", Properties(undecoded=b"\x11\x00\x00\x00\x01")),
        (b"\x0b\xff\xff\xff\xff\x01", Properties(undecoded=b"\x0b\xff\xff\xff\xff\x01")),
        (b"\x23\x00\x01", NO_PROPERTIES),
    ],
    ids=["no UTF-8", "no UTF-8 either", "a number", "unknown", "twice", "of CONNECT", "too long", "an alias"],
)
def test_what_a_broker_must_not_send_is_shown_as_it_came(raw, wanted):
    assert decode_properties(raw) == wanted


def test_a_message_of_nothing_but_properties_takes_memory_in_proportion():
    """Planted: no limit."""
    one = encoder.one_property("user_property", (b"", b""))
    found = decode_properties(one * (MOST_REPEATED + 3))
    assert (len(found.headers or ()), found.undecoded) == (MOST_REPEATED, one * 3)


# Rows


def rows_of(folder: Path, end: int, **options) -> list[Message]:
    """Return the rows of segment 0, in the form of the other reader."""
    found = []
    for batch in rows.read_range(SpoolView(folder), "ab" * 16, 0, 0, end, headers=True, **options):
        assert batch.schema == rows.HEADERS_ARROW_SCHEMA
        batch.validate(full=True)
        received_ms = (batch["received_ts"].cast(pa.int64()).to_numpy() // 1000).tolist()
        for row, ms in zip(batch.drop_columns("received_ts").to_pylist(), received_ms, strict=True):
            pairs, others = row["headers"], row["properties"]
            headers = None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
            place = (row["segment"], row["position"], ms)
            flags = (row["qos"], row["retain"], row["dup"])
            decoded = Properties(headers, **(others or {}))
            assert others is None or decoded[1:] != NO_PROPERTIES[1:]
            found.append(Message(*place, row["topic"], row["payload"], *flags, decoded))
    return found


def write_segment(folder: Path, parts: list[tuple[int, list[bytes]]]) -> int:
    """Write segment 0 of a spool, with blocks of that level; return its length."""
    raw = b""
    for number, (level, packets) in enumerate(parts):
        body = b"".join(packets)
        raw += encode_block_header(body, len(packets), RECEIVED_MS + number, level) + body
    folder.mkdir(exist_ok=True)
    segment_path(folder, 0).write_bytes(raw)
    (folder / "pos").write_bytes(blocks.encode_position(blocks.Position("ab" * 16, 0, len(raw))))
    return len(raw)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("spool") / "north"


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 1 << 32), chunk=st.sampled_from([24, 60, 500, 1 << 20]))
def test_rows_show_what_was_sent_whatever_the_levels_of_their_blocks_and_the_chunks(folder, seed, chunk):
    """Planted: the properties of the packet before; a length of properties of one byte."""
    rng = random.Random(seed)
    parts: list[tuple[int, list[bytes]]] = []
    sent: list[tuple[str, bytes, Properties]] = []
    for _ in range(rng.randint(1, 5)):
        level, packets = rng.choice((4, 5)), []
        for _ in range(rng.randrange(4)):
            topic, payload = rng.choice(("t", "fleet/ü/log")), rng.randbytes(rng.choice((0, 3, 200)))
            encoded, wanted = random_properties(rng) if level == 5 and rng.randrange(3) else ([], NO_PROPERTIES)
            qos = rng.randrange(2)
            packets.append(
                with_properties(topic, payload, b"".join(encoded), qos)
                if level == 5
                else publish_packet(topic, payload, qos=qos)
            )
            sent.append((topic, payload, wanted))
        parts.append((level, packets))
    end = write_segment(folder, parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_CHUNK_BYTES", chunk)
        found = rows_of(folder, end)
        assert [(one.topic, one.payload, one.properties) for one in found] == sent
        assert found == list(messages(SpoolView(folder)))
        some = rows_of(folder, end, wanted=lambda topic: topic == "t")
        assert some == [one for one in found if one.topic == "t"]
        plain = list(rows.read_range(SpoolView(folder), "ab" * 16, 0, 0, end))
    assert [t for batch in plain for t in batch["payload"].to_pylist()] == [payload for _, payload, _ in sent]
    assert all(batch.schema == rows.ARROW_SCHEMA for batch in plain)


def test_properties_are_not_decoded_unless_their_columns_are_asked_for(folder, monkeypatch):
    """Planted: columns that are made and dropped."""
    end = write_segment(folder, [(5, [with_properties("t", b"x", SITE)])])
    monkeypatch.setattr(rows, "decode_properties", lambda _raw: pytest.fail("decoded"))
    assert [batch.num_rows for batch in rows.read_range(SpoolView(folder), "ab" * 16, 0, 0, end)] == [1]


@pytest.mark.parametrize(
    "body",
    [
        with_properties("t", b"", SITE)[:-1],
        encoder.publish(b"t", b"", 1, 1, properties=b"\x05ab"),
        encoder.publish(b"t", b"", 1, 1, properties=b"\xff\xff\xff\xff\x01" + bytes(20)),
        encoder.publish(b"t", b"", 1, 1, properties=b"\xff\xff\xff\x7f"),
        encoder.publish(b"t", b"", 1, 1, properties=b"\x80"),
        encoder.publish(b"t", b"", 1, 1),
    ],
    ids=["cut short", "beyond the packet", "a length of five bytes", "256 MB", "no end of the length", "none"],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_block_whose_properties_leave_their_packet_is_damage(folder, body, alone):
    """Planted: a comparison with the end of the chunk."""
    end = write_segment(folder, [(5, [body] if alone else [body, with_properties("t", b"x" * 30, SITE)])])
    with pytest.raises(SpoolDamaged, match="damaged at byte 0"):
        rows_of(folder, end)
    assert "does not consist of PUBLISH packets" in str(verify(SpoolView(folder)).damages)


# The format on disk

# A block of two messages, at QoS 1 and 0.
BLOCK = bytes.fromhex(
    "4d514231 18000000 02000000 9310c1aa 005e56ee a1010000"  # magic, length, count, crc32, received_ms
    "320d 0006 666c6565742f 0001 6f6e65"  # fleet/, packet identifier 1, one
    "3007 0001 74 74776f2e"  # t, two.
)


def test_messages_without_properties_are_written_as_these_bytes(tmp_path):
    """Planted: a header of another size; a checksum that begins elsewhere."""
    body = BLOCK[BLOCK_HEADER.size :]
    folder = tmp_path / "north"
    with Spool(folder) as spool:
        spool.append(body, 2, RECEIVED_MS)
    assert segment_path(folder, 0).read_bytes() == BLOCK
    assert read_checked_json(folder / "spool.json")["format"] == 1
    found = rows_of(folder, len(BLOCK))
    assert [(one.topic, one.payload, one.qos, one.properties) for one in found] == [
        ("fleet/", b"one", 1, NO_PROPERTIES),
        ("t", b"two.", 0, NO_PROPERTIES),
    ]


def test_a_cut_at_every_byte_of_a_block_with_properties_is_damage_to_a_reader_and_a_torn_tail_to_a_collector(tmp_path):
    folder = tmp_path / "north"
    packets = [with_properties("t", b"one", SITE), with_properties("t", b"two", b"", qos=0)]
    with Spool(folder) as spool:
        spool.append(publish_packet("t", b"before"), 1, RECEIVED_MS)
        before, synced = (folder / "pos").read_bytes(), spool.durable.position
        spool.append(b"".join(packets), 2, RECEIVED_MS, 5)
    whole = segment_path(folder, 0).read_bytes()
    for cut in range(synced + 1, len(whole)):
        segment_path(folder, 0).write_bytes(whole[:cut])
        got: list[bytes] = []
        with pytest.raises(SpoolDamaged):
            for batch in rows.read_range(SpoolView(folder), "ab" * 16, 0, 0, len(whole), headers=True):
                got += batch["payload"].to_pylist()
        assert got in ([], [b"before"])
    for cut in range(synced, len(whole) + 1):
        copy = tmp_path / "cut" / "north"
        shutil.copytree(folder, copy)
        segment_path(copy, 0).write_bytes(whole[:cut])
        (copy / "pos").write_bytes(before)
        with Spool(copy) as spool:
            assert spool.truncated_bytes == (0 if cut == len(whole) else cut - synced)
        kept = [(one.payload, one.properties.headers) for one in messages(SpoolView(copy))]
        complete = [(b"one", [("site", b"north")]), (b"two", None)] if cut == len(whole) else []
        assert kept == [(b"before", None), *complete]
        shutil.rmtree(copy.parent)


def test_a_flipped_bit_or_another_magic_is_damage_and_never_a_wrong_row(folder):
    """Planted: a checksum without the magic."""
    packets = [with_properties("t", b"one", SITE), with_properties("t", b"two", b"")]
    end = write_segment(folder, [(5, packets)])
    whole = segment_path(folder, 0).read_bytes()
    others = [b"MQB1" + whole[4:]]
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        others.append(bytes(damaged))
    plain = encode_block_header(b"0\x06\x00\x01t\x01\x00x", 1, RECEIVED_MS) + b"0\x06\x00\x01t\x01\x00x"
    others.append(b"MQB2" + plain[4:])
    for data in others:
        segment_path(folder, 0).write_bytes(data)
        with pytest.raises(SpoolDamaged, match="is damaged at byte 0"):
            rows_of(folder, min(end, len(data)))


# From a publisher to the rows


def test_what_a_publisher_of_mqtt_5_sends_is_in_the_rows(paired, tmp_path):
    """Planted: a collector that drops properties; one that keeps those of the last message alone."""
    many = [("site", "north"), ("site", "south"), ("", ""), ("a\tü\x1b[2J\U0001f600", "x" * 5000)]
    many += [(f"key {i}", str(i)) for i in range(400)]
    sender = paho.Client(CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv5)
    with collector_process(paired, tmp_path, "north", "--topic", "fleet/#") as one:
        one.wait_for_line("subscribed north")
        sender.connect("127.0.0.1", paired)
        sender.loop_start()
        for number, pairs in enumerate(([], [("site", "north")], [], many)):
            sent = paho.Properties(PacketTypes.PUBLISH)
            sent.UserProperty = pairs
            if number == 1:
                sent.ContentType, sent.ResponseTopic = "text/plain", "answers/ü"
                sent.CorrelationData, sent.PayloadFormatIndicator = b"\x00\xff", 1
                sent.MessageExpiryInterval = 1_000_000
            info = sender.publish(f"fleet/{number}", b"%d" % number, qos=number % 2, properties=sent)
            info.wait_for_publish(WAIT_LIMIT_S)
        view = SpoolView(tmp_path / "north")
        eventually(lambda: len(list(messages(view))) == 4, "four messages")
        assert one.terminate()[0] == 0
    sender.disconnect()
    sender.loop_stop()
    place = view.durable()
    assert place is not None
    found = rows_of(tmp_path / "north", place.position)
    assert found == list(messages(view))
    headers = [one.properties.headers for one in found]
    assert headers == [None, [("site", b"north")], None, [(key, value.encode()) for key, value in many]]
    plain, full, *_ = [one.properties for one in found]
    assert plain == NO_PROPERTIES
    assert (full.content_type, full.response_topic, full.correlation_data) == ("text/plain", "answers/ü", b"\x00\xff")
    assert full.payload_format_indicator == 1 and 999_000 < (full.message_expiry_interval or 0) <= 1_000_000
    assert (full.subscription_identifiers, full.undecoded) == (None, None)


@given(st.integers(0, 268_435_455))
def test_a_variable_byte_integer_is_the_specifications(value):
    encoded = encoder.variable(value)
    assert variable_integer(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))
