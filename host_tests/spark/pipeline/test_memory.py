"""The ingestion takes no more memory than docs/ingest.md says, however large, many or dense the messages are.

`make test` measures what writes a micro-batch, without Spark, at the smallest --max-bytes, and `make prove-ingest` the
whole pipeline.
"""

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from gold_fleet import assert_law, fleet, written
from proof import memory
from test_decoders import rules, sent
from test_sparkplug import RULE, history

from spark_ingest.pipeline import gold, messages
from spark_ingest.pipeline.messages import part

_SMALLEST = 4


@pytest.mark.parametrize("kind", memory.KINDS)
def test_a_micro_batch_takes_no_more_memory_than_is_stated(tmp_path: Path, kind: str) -> None:
    """Planted: all payloads of a micro-batch decoded at once; prove.py shows it at 64M."""
    assert memory.writer_peak(kind, _SMALLEST, tmp_path / "made") <= memory.documented()[_SMALLEST] * 1e9


def test_messages_decoded_in_pieces_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: births that only the first piece sees; the first message of each piece left out."""
    how = rules(tmp_path, RULE)
    micro_batch = sent(*history(random.Random(1), 200), ("fleet/pump/telemetry", "garbage"), ("fleet/pump/log", "{}"))
    whole = part(micro_batch, how)
    for size in (1, 1000):
        monkeypatch.setattr(messages, "_PIECE_BYTES", size)
        in_pieces = part(micro_batch, how)
    assert all(piece.equals(same) for piece, same in zip(in_pieces[:-1], whole[:-1], strict=True))
    assert in_pieces.ignored == whole.ignored


def test_gold_counted_in_small_chunks_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: only the last chunk counts."""
    with monkeypatch.context() as patch:
        patch.setattr(gold, "_CHUNK_BYTES", 20_000)
        written(tmp_path, fleet(3)[:4], random.Random(3))
    assert_law(tmp_path, 3)


@pytest.mark.parametrize("seed", range(20))
def test_gold_counts_dense_rows_in_small_chunks_wherever_they_lie(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Planted: whole batches of 4,096 rows, however many metrics these have; a row left out where a chunk ends."""
    chance = random.Random(seed)
    rows = [chance.choice((0, 1, 3, 1000, 50_000)) for _ in range(chance.randrange(60))]
    names = pa.schema([("seq", pa.int64()), ("metrics", pa.map_(pa.string(), pa.float64()))])
    columns = [list(range(len(rows))), [[(str(number), 1.0) for number in range(count)] for count in rows]]
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, names, strict=True)], names)
    monkeypatch.setattr(gold, "_CHUNK_BYTES", most := chance.choice((1_000, 1_000_000, 20_000_000)))
    monkeypatch.setattr(gold, "SCHEMAS", {"silver": names})
    source: Any = SimpleNamespace(batches=lambda *_: table.to_batches(max_chunksize=chance.randrange(1, 20)))
    chunks = list(gold._chunks(source, "silver"))
    assert [seq for chunk in chunks for seq in chunk["seq"].to_pylist()] == columns[0]
    for chunk in chunks:
        (batch,) = chunk.to_batches()
        assert chunk.num_rows == 1 or gold._sizes(batch)[-1] <= 1.1 * most, seed
    # As many as it must be, and not one for each row.
    for one, other in pairwise(chunks):
        assert gold._sizes(one.to_batches()[0])[-1] + gold._sizes(other.to_batches()[0])[1] > 0.8 * most
