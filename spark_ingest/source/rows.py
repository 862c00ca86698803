"""Converts bytes of a spool to Arrow record batches, the rows of ``format("mqtt")``.

One Python loop follows the packet lengths; everything else is vectorized over a whole chunk. An Arrow binary array is
laid over the bytes of the spool without copying them, with four consecutive elements per packet: header, topic,
packet identifier with properties, and payload. Taking every fourth element then gives a column.

Properties are decoded one by one, and only if the columns made of them are asked for.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import SpoolDamaged
from ..spool.blocks import BLOCK_HEADER, LATEST_MS, checked_blocks, damage_message, decode_block_header, segment_path
from ..spool.properties import NO_PROPERTIES, Properties, decode_properties, variable_integer
from ..spool.view import SpoolView

SPARK_SCHEMA = (
    "topic string, payload binary, received_ts timestamp, qos tinyint, retain boolean, dup boolean, "
    "collector string, spool string, segment bigint, position bigint"
)
"""``position`` is the PUBLISH packet's own byte offset: (spool, segment, position) is a key."""

ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("received_ts", pa.timestamp("us", tz="UTC")),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        ("collector", pa.string()),
        ("spool", pa.string()),
        ("segment", pa.int64()),
        ("position", pa.int64()),
    ]
)

HEADERS_SPARK_SCHEMA = (
    "headers array<struct<key string, value binary>>, "
    "properties struct<payload_format_indicator smallint, message_expiry_interval bigint, content_type string, "
    "response_topic string, correlation_data binary, subscription_identifiers array<int>, undecoded binary>"
)
"""The columns that ``includeHeaders`` adds: user properties as in Spark's Kafka source, and the other properties."""

# Spark calls the elements of an array `element`.
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_PROPERTIES = pa.struct(
    [
        ("payload_format_indicator", pa.int16()),
        ("message_expiry_interval", pa.int64()),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("subscription_identifiers", pa.list_(pa.field("element", pa.int32()))),
        ("undecoded", pa.binary()),
    ]
)
HEADERS_ARROW_SCHEMA = ARROW_SCHEMA.append(pa.field("headers", _HEADERS)).append(pa.field("properties", _PROPERTIES))

# A chunk becomes one record batch. Small blocks of a live stream share a batch, because each batch has a fixed cost
# on its way to the JVM. Larger chunks are not faster: they exceed the processor's caches and the allocator's reused
# pages.
_CHUNK_BYTES = 2 << 20
# Arrow's binary arrays count bytes in 32 bits.
_LONGEST_BLOCK = (1 << 31) - 1


class _Packets(NamedTuple):
    """The packets of a chunk: its `data`, and arrays with one element per packet.

    `starts` has the byte offset of each packet in `data`. `before` has the end of the preceding packet, which equals
    `starts` or is one or more block headers earlier. `in_version_5` tells which packets are of MQTT 5; None if none is.
    `last` is the end of the last packet, `end` that of the last block.
    """

    data: bytes
    starts: np.ndarray
    before: np.ndarray
    received_ms: np.ndarray
    in_version_5: np.ndarray | None
    last: int
    end: int


def read_range(
    view: SpoolView,
    spool: str,
    segment: int,
    start: int,
    end: int,
    *,
    wanted: Callable[[str], bool] | None = None,
    headers: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages in [`start`, `end`) of a segment as record batches; both are block boundaries.

    :param wanted: tells by the topic whether a message becomes a row; None if every message does.
    :param headers: whether the schema is HEADERS_ARROW_SCHEMA; otherwise it is ARROW_SCHEMA.
    :raises DataLoss: the segment is gone.
    :raises SpoolDamaged: it is shorter than `end`, or a block fails its checksum.
    """
    position, want = start, _CHUNK_BYTES
    while position < end:
        data = view.read(segment, position, min(position + want, end))
        packets = _packets(data, position)
        parts = None if packets.end == 0 else _parts(packets)
        if parts is None:
            # This is damage unless the block is just larger than the bytes read.
            header = decode_block_header(data[: BLOCK_HEADER.size], position)
            if header is None or not position + len(data) < header.end <= min(end, position + _LONGEST_BLOCK):
                raise SpoolDamaged(damage_message(segment_path(Path(view.where), segment), position))
            want = header.end - position
            continue
        batch = _batch(packets, parts, (view.name, spool, segment, position), wanted, headers)
        if batch.num_rows:
            yield batch
        position, want = position + packets.end, _CHUNK_BYTES


def _packets(data: bytes, position: int) -> _Packets:
    """Find the packets of the complete blocks at the start of `data`, which was read at `position`."""
    starts: list[int] = []
    counts: list[int] = []
    received_ms: list[int] = []
    in_version_5: list[bool] = []
    block_ends: list[int] = [0]
    for header, _body in checked_blocks(data, position):
        so_far = len(starts)
        if _follow(data, header.start - position, header.end - position, starts) != header.messages:
            # The checksum is right, so the bytes are not damaged, but a collector did not write them.
            del starts[so_far:]
            break
        counts.append(header.messages)
        received_ms.append(min(header.received_ms, LATEST_MS))
        in_version_5.append(header.level == 5)
        block_ends.append(header.end - position)
    in_block = np.array(counts, dtype=np.int64)
    with_packets = np.flatnonzero(in_block)
    firsts = (np.cumsum(in_block) - in_block)[with_packets]
    ends = np.array(block_ends, dtype=np.int64)[with_packets + 1]
    begins = np.array(starts, dtype=np.int64)
    before = begins.copy()
    before[firsts[1:]] = ends[:-1]
    return _Packets(
        data,
        begins,
        before,
        np.repeat(np.array(received_ms, dtype=np.int64), in_block),
        np.repeat(np.array(in_version_5), in_block) if any(in_version_5) else None,
        int(ends[-1]) if len(ends) else 0,
        block_ends[-1],
    )


def _follow(data: bytes, offset: int, end: int, starts: list[int]) -> int:
    """Append the start of each PUBLISH in [`offset`, `end`) to `starts`.

    Returns the number of packets, or -1 if they do not end exactly at `end`.
    """
    before = len(starts)
    add = starts.append
    try:
        while offset < end:
            add(offset)
            # Nearly every packet of telemetry has a remaining length of two bytes.
            length, more = data[offset + 1], data[offset + 2]
            if length < 128:
                offset += 2 + length
            elif more < 128:
                offset += 3 + (length & 127) + (more << 7)
            else:
                offset = sum(variable_integer(data, offset + 1))
    except IndexError:
        return -1
    return len(starts) - before if offset == end else -1


def _parts(packets: _Packets) -> pa.Array | None:
    """Return header, topic, packet identifier with properties, and payload of every packet, uncopied.

    None if a packet is malformed.
    """
    octets = np.frombuffer(packets.data, dtype=np.uint8)
    try:
        # The remaining length has one to four bytes; the first one without the top bit is the last.
        length_at = packets.starts + 1
        continued = octets[length_at] >= 128
        while continued.any():
            length_at = length_at + continued
            continued &= octets[length_at] >= 128
        topic = length_at + 3
        topic_end = topic + (octets[topic - 2].astype(np.int64) << 8 | octets[topic - 1])
        # Only packets of QoS 1 and 2 have a packet identifier [MQTT-2.3.1-5].
        payload = topic_end + np.where(octets[packets.starts] & 6, 2, 0)
        if packets.in_version_5 is not None:
            payload[packets.in_version_5] = _after_properties(octets, payload[packets.in_version_5])
    except IndexError:
        return None
    offsets = np.empty(4 * len(topic) + 1, dtype=np.int32)
    offsets[0:-1:4] = packets.before
    offsets[1::4] = topic
    offsets[2::4] = topic_end
    offsets[3::4] = payload
    offsets[-1] = packets.last
    # Collectors never write a packet that is shorter than its topic. For such a packet, Arrow would read past the end.
    if (offsets[1:] < offsets[:-1]).any():
        return None
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(octets)])


def _after_properties(octets: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return where the properties that begin at the indices `at` end.

    :raises IndexError: the length of one of them is longer than four bytes, or `octets` ends within it.
    """
    # `at` stays at the last octet of a length, since nothing may follow it in `octets`.
    size = octets[at].astype(np.int64) & 127
    continued = octets[at] >= 128
    for shift in (7, 14, 21):
        at = at + continued
        size += np.where(continued, (octets[at].astype(np.int64) & 127) << shift, 0)
        continued &= octets[at] >= 128
    if continued.any():
        raise IndexError
    return at + 1 + size


def _batch(
    packets: _Packets,
    parts: pa.Array,
    place: tuple[str, str, int, int],
    wanted: Callable[[str], bool] | None,
    headers: bool,
) -> pa.RecordBatch:
    """Return the chunk's rows.

    :param parts: the result of :func:`_parts`.
    :param place: collector, spool, segment, and the chunk's position in it.
    :param wanted, headers: as for :func:`read_range`.
    """
    collector, spool, segment, position = place
    rows = np.arange(len(packets.starts), dtype=np.int64)
    topics = _topics(parts.take(pa.array(4 * rows + 1)))
    if wanted is not None:
        encoded = topics.dictionary_encode()
        known = np.array([wanted(topic) for topic in encoded.dictionary.to_pylist()], dtype=bool)
        rows = np.flatnonzero(known[encoded.indices.to_numpy()])
        topics = topics.take(pa.array(rows))
    starts = packets.starts[rows]
    flags = np.frombuffer(packets.data, dtype=np.uint8)[starts]
    arrays = [
        topics,
        parts.take(pa.array(4 * rows + 3)),
        pa.array(packets.received_ms[rows] * 1000).view(pa.timestamp("us", tz="UTC")),
        pa.array((flags >> 1 & 3).astype(np.int8)),
        pa.array(flags & 1 != 0),
        pa.array(flags & 8 != 0),
        pa.repeat(collector, len(rows)),
        pa.repeat(spool, len(rows)),
        pa.array(np.full(len(rows), segment, dtype=np.int64)),
        pa.array(starts + position),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
    arrays += _property_columns(packets, parts, rows, flags)
    return pa.RecordBatch.from_arrays(arrays, schema=HEADERS_ARROW_SCHEMA)


def _property_columns(packets: _Packets, parts: pa.Array, rows: np.ndarray, flags: np.ndarray) -> list[pa.Array]:
    """Return the columns of HEADERS_SPARK_SCHEMA for some of the chunk's packets.

    :param rows: the indices of the packets, `flags` their first bytes.
    """
    if packets.in_version_5 is None or not len(rows):
        return [pa.nulls(len(rows), _HEADERS), pa.nulls(len(rows), _PROPERTIES)]
    raw = parts.take(pa.array(4 * rows + 2)).to_pylist()
    found = [
        _decode(part, 2 if first & 6 else 0) if is_5 else NO_PROPERTIES
        for part, first, is_5 in zip(raw, flags.tolist(), packets.in_version_5[rows].tolist(), strict=True)
    ]
    keys: list[str] = []
    values: list[bytes] = []
    starts: list[int | None] = []
    headers, *others = zip(*found, strict=True)
    for pairs in headers:
        # A list that begins at null is null.
        starts.append(None if pairs is None else len(keys))
        for key, value in pairs or ():
            keys.append(key)
            values.append(value)
    elements = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADERS.value_type)
    )
    offsets = pa.array([*starts, len(keys)], pa.int32())
    # The fields of _PROPERTIES are those of Properties, in the same order.
    fields = [pa.array(column, field.type) for column, field in zip(others, _PROPERTIES, strict=True)]
    is_null = pa.array([one[1:] == NO_PROPERTIES[1:] for one in found], pa.bool_())
    return [
        pa.ListArray.from_arrays(offsets, elements, type=_HEADERS),
        pa.StructArray.from_arrays(fields, fields=list(_PROPERTIES), mask=is_null),
    ]


def _decode(part: bytes, at: int) -> Properties:
    """Decode the properties in the third element of a packet, where they begin at `at` with their length."""
    return decode_properties(part[variable_integer(part, at)[1] :])


def _topics(topics: pa.Array) -> pa.Array:
    try:
        return topics.cast(pa.string())
    except pa.ArrowInvalid:
        # A broker must refuse a topic that is not UTF-8 [MQTT-1.5.3-1]. If it does not, the query must go on anyway.
        return pa.array([topic.decode("utf-8", "backslashreplace") for topic in topics.to_pylist()], pa.string())
