"""Spool bytes to Arrow record batches: the rows of ``format("mqtt")``."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from .errors import DataLoss, SpoolDamaged
from .spool_format import checked_blocks, damage_message, segment_path

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

# Small blocks of a live stream share a record batch: each batch has a fixed cost on its way to the JVM.
_BATCH_ROWS = 20_000
_READ_BYTES = 8 << 20


class _Columns:
    """Rows gathered for one record batch."""

    def __init__(self) -> None:
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.flags: list[int] = []
        self.positions: list[int] = []
        self.received_ms: list[int] = []
        self.counts: list[int] = []

    def take_block(self, body: bytes, start: int, received_ms: int) -> None:
        """Decode one block's PUBLISH packets; the collector checked their structure before it stored them."""
        topics, payloads, flags, positions = self.topics, self.payloads, self.flags, self.positions
        before, offset, size = len(topics), 0, len(body)
        while offset < size:
            first, length, at = body[offset], body[offset + 1], offset + 2
            if length & 128:
                length &= 127
                shift = 7
                while True:
                    byte = body[at]
                    at += 1
                    length |= (byte & 127) << shift
                    if not byte & 128:
                        break
                    shift += 7
            end = at + length
            payload = at + 2 + (body[at] << 8 | body[at + 1])
            topics.append(body[at + 2 : payload])
            payloads.append(body[payload + 2 if first & 6 else payload : end])
            flags.append(first)
            positions.append(start + offset)
            offset = end
        self.received_ms.append(received_ms)
        self.counts.append(len(topics) - before)

    def to_batch(self, collector: str, spool: str, segment: int) -> pa.RecordBatch:
        """The gathered rows, in the schema that Spark was promised."""
        rows = len(self.topics)
        flags = np.array(self.flags, dtype=np.uint8)
        received_ms = np.repeat(np.array(self.received_ms, dtype=np.int64), self.counts)
        arrays = [
            _topics(self.topics),
            pa.array(self.payloads, pa.binary()),
            pa.array(received_ms * 1000).view(pa.timestamp("us", tz="UTC")),
            pa.array((flags >> 1 & 3).astype(np.int8)),
            pa.array(flags & 1 != 0),
            pa.array(flags & 8 != 0),
            pa.repeat(collector, rows),
            pa.repeat(spool, rows),
            pa.array(np.full(rows, segment, dtype=np.int64)),
            pa.array(self.positions, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _topics(topics: list[bytes]) -> pa.Array:
    try:
        return pa.array(topics, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        # A broker must refuse a topic that is not UTF-8 [MQTT-1.5.3-1]. One that does not must not stop the
        # query.
        return pa.array([topic.decode("utf-8", "backslashreplace") for topic in topics], pa.string())


def read_range(
    folder: Path, collector: str, spool: str, segment: int, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The messages in [`start`, `end`) of a segment; both lie between blocks.

    :raises DataLoss: the segment is gone.
    :raises SpoolDamaged: it is shorter than `end`, or a block fails its checksum.
    """
    path = segment_path(folder, segment)
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise DataLoss(f"{path} was removed before it was read") from None
    columns = _Columns()
    try:
        position, want = start, _READ_BYTES
        while position < end:
            data = os.pread(fd, min(want, end - position), position)
            before = position
            for header, body in checked_blocks(data, position):
                columns.take_block(bytes(body), header.start, header.received_ms)
                position = header.end
                if len(columns.topics) >= _BATCH_ROWS:
                    yield columns.to_batch(collector, spool, segment)
                    columns = _Columns()
            if position == before:
                # No whole block: damage, unless the block is merely larger than what was read.
                if len(data) < min(want, end - position) or want >= end - position:
                    raise SpoolDamaged(damage_message(path, position))
                want *= 2
    finally:
        os.close(fd)
    if columns.topics:
        yield columns.to_batch(collector, spool, segment)
