"""A state file that is damaged anywhere is recognised as damaged, and its content is rebuilt from the tables."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_helpers import fill, record
from test_batch import BATCHES, QUERY, workload
from test_record import messages

from spark_ingest.durable import read_checked, replace_checked
from spark_ingest.errors import FileDamaged, IngestError, SpoolDamaged, UsageError
from spark_ingest.gold import Gold
from spark_ingest.gold.database import Database
from spark_ingest.pipeline.deduplicate.progress import Progress
from spark_ingest.pipeline.process import require_checkpoint
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter, _settled_buckets
from spark_ingest.spool.blocks import known_runs
from spark_ingest.spool.writer import Spool
from spark_ingest.tables import summary

DAMAGES = 3000 if os.environ.get("UMQTT_FULL_SWEEPS") else 100


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the data with a bit flipped, cut short, lengthened, or with foreign bytes in the middle."""
    at = rng.randrange(len(data))
    how = rng.randrange(6)
    if how == 0:
        return data[:at]
    if how == 1:
        return data + data[at:]
    if how == 2:
        other = bytes(256 - byte if byte else 0 for byte in data[at : at + 512])
        return data[:at] + (other if any(other) else b"\1" * len(other)) + data[at + len(other) :]
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def made(folder: Path) -> BatchWriter:
    writer = BatchWriter(folder, folder / "state", report=lambda _line: None)
    for batch_id, batch in enumerate(workload(seed=1)[0]):
        writer.write(batch, batch_id, QUERY)
    return writer


def test_every_damage_of_every_file_of_state_is_known_as_damage(tmp_path, rng):
    """Planted: a checksum of the content alone, so that a file truncated to nothing passes; no checksum at all."""
    made(tmp_path)
    Gold(tmp_path).update()
    gold = tmp_path / "gold" / ".state" / "state"
    db = Database(tmp_path)
    progress = tmp_path / "state" / "bucket-0001"
    _settled_buckets(tmp_path / "buckets", 8, print)
    cases: list[tuple[Path, Callable[[], object]]] = [
        (progress / "progress-0.arrow", lambda: Progress(progress).load(BATCHES - 1)),
        (progress / f"changes-{BATCHES - 1}.arrow", lambda: Progress(progress).load(BATCHES - 1)),
        (gold, lambda: db.load(gold)),
        (tmp_path / "buckets" / "buckets.json", lambda: read_checked(tmp_path / "buckets" / "buckets.json")),
    ]
    for path, read in cases:
        whole = path.read_bytes()
        read()
        for _ in range(DAMAGES):
            path.write_bytes(damaged(whole, rng))
            if path.read_bytes() == whole:
                continue
            with pytest.raises(FileDamaged, match=rf"{path.name} is damaged"):
                read()
        path.write_bytes(b"")
        with pytest.raises(FileDamaged):
            read()
        path.write_bytes(whole)
        read()


def test_every_damage_of_a_file_that_says_what_a_folder_is_is_one_line(tmp_path, rng):
    """Planted: JSON without a checksum, in which a flipped bit gives another spool, other tables or another
    version.
    """
    fill(tmp_path / "spool", [[b"a"]])
    require_checkpoint(tmp_path, "silver-1")
    cases: list[tuple[Path, Callable[[], object], type[IngestError], str]] = [
        (tmp_path / "spool" / "spool.json", lambda: known_runs(tmp_path / "spool"), SpoolDamaged, "restore it"),
        (tmp_path / "spool" / "spool.json", lambda: Spool(tmp_path / "spool"), SpoolDamaged, "restore it"),
        (tmp_path / "umqtt" / "version.json", lambda: require_checkpoint(tmp_path, "silver-1"), UsageError, "new --ch"),
    ]
    for path, read, kind, remedy in cases:
        whole = path.read_bytes()
        for _ in range(DAMAGES):
            path.write_bytes(damaged(whole, rng))
            if path.read_bytes() == whole:
                continue
            with pytest.raises(kind, match=rf"{path.name} is damaged.*{remedy}"):
                read()
        path.write_bytes(whole)


def test_a_damaged_set_of_readings_seen_is_rebuilt_and_said_in_one_line(tmp_path, rng):
    batches, made_identities, corrupt = workload(seed=2)
    lines: list[str] = []
    for batch_id, batch in enumerate(batches):
        writer = BatchWriter(tmp_path, tmp_path / "state", buckets=1, report=lines.append)
        writer.write(batch, batch_id, QUERY)
        (path,) = (tmp_path / "state").glob(f"bucket-0000/*-{batch_id}.arrow")
        path.write_bytes(damaged(path.read_bytes(), rng))
    assert summary(tmp_path) == (len(made_identities), len(made_identities), corrupt)
    assert len(lines) == BATCHES - 1
    assert all(".arrow is damaged): rebuilt it from " in line for line in lines), lines


def test_a_damaged_state_of_gold_is_counted_anew_and_said_in_one_line(tmp_path, rng):
    writer = made(tmp_path)
    gold = Gold(tmp_path)
    gold.update()
    state = tmp_path / "gold" / ".state" / "state"
    state.write_bytes(damaged(state.read_bytes(), rng))
    writer.write(messages([record("new", "1-a", 0)]).select(MESSAGE_COLUMNS), BATCHES, QUERY)
    lines: list[str] = []
    again = Gold(tmp_path, report=lines.append)
    again.update()
    assert again.devices == gold.devices + 1
    (line,) = lines
    assert line.endswith(f"{state.name} is damaged: gold is counted anew")


def test_a_damaged_number_of_buckets_is_that_of_their_folders(tmp_path, rng):
    """Planted: the number given on the command line."""
    lines: list[str] = []
    assert _settled_buckets(tmp_path, 3, lines.append)[0] == 3
    for bucket in range(3):
        (tmp_path / f"bucket-{bucket:04d}").mkdir()
    path = tmp_path / "buckets.json"
    path.write_bytes(damaged(path.read_bytes(), rng))
    assert _settled_buckets(tmp_path, 8, lines.append)[0] == 3
    assert "buckets.json is damaged: recreated it for 3 buckets" in lines[0]
    assert _settled_buckets(tmp_path, 3, lines.append)[0] == 3


def test_what_was_written_is_what_is_read(tmp_path):
    for data in (b"", b"x", bytes(range(256)) * 100, b"umqtt 1 1 00000000\nx"):
        replace_checked(tmp_path / "file", data)
        assert bytes(read_checked(tmp_path / "file")) == data
