"""The ingestion takes no more memory than docs/ingest.md says, however large, many or dense the messages are.

`make test` measures what writes a micro-batch, without Spark, at the smallest --max-bytes, and `make prove-ingest` the
whole pipeline.
"""

import random
from pathlib import Path

import pytest
from proof import memory
from test_decoders import rules, sent
from test_sparkplug import RULE, history

from spark_ingest.pipeline.decode import messages
from spark_ingest.pipeline.decode.messages import part

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
