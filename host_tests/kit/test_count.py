"""The count finds every reading that was lost, stored twice, or never made, in tables written for the purpose."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from umqtt_kit.demo.count import count
from umqtt_kit.ground_truth import (
    GroundTruth,
    GroundTruthCounter,
    GroundTruthError,
    ReadingId,
    ground_truth_path,
    read_ground_truth,
)

pytestmark = pytest.mark.tier(0)


def _reading(number: int) -> ReadingId:
    return ReadingId(f"dev-{number % 7}", f"1-{number % 3:016x}", number // 21)


def _ground_truth(folder: Path, readings: Iterable[ReadingId]) -> None:
    folder.mkdir(exist_ok=True)
    writers: dict[str, GroundTruth] = {}
    for reading in readings:
        if reading.device_id not in writers:
            writers[reading.device_id] = GroundTruth(folder, reading.device_id)
        writers[reading.device_id].note(reading.boot, reading.seq)
    for writer in writers.values():
        writer.close()


def _store(tables: Path, readings: Iterable[ReadingId]) -> None:
    rows = list(readings)
    silver = pa.table(
        {
            "device_id": pa.array([row.device_id for row in rows], pa.string()),
            "boot": pa.array([row.boot for row in rows], pa.string()),
            "seq": pa.array([row.seq for row in rows], pa.int64()),
        }
    )
    write_deltalake(str(tables / "silver"), silver, mode="append")


@pytest.mark.parametrize("seed", range(8))
def test_every_kind_of_difference_is_counted_exactly(tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    everything = [_reading(number) for number in range(400)]
    rng.shuffle(everything)
    not_made, lost = everything[: rng.randrange(5)], everything[10 : 10 + rng.randrange(5)]
    duplicated = everything[20 : 20 + rng.randrange(5)]
    made = [reading for reading in everything if reading not in not_made]
    _ground_truth(tmp_path / "ground_truth", made)
    _store(tmp_path, [reading for reading in everything if reading not in lost] + duplicated)
    counted = count(tmp_path / "ground_truth", tmp_path)
    assert (counted.made, counted.stored) == (len(made), len(everything) - len(lost) + len(duplicated))
    assert (counted.lost, counted.duplicated) == (len(lost), len(duplicated))
    assert counted.not_made + counted.unnoted == len(not_made)
    assert counted.complete == (not lost and not duplicated and not not_made)
    assert len(counted.examples.get("lost", [])) == len(lost)


def test_two_readings_under_one_identity_are_one_lost(tmp_path):
    _ground_truth(tmp_path / "ground_truth", [_reading(1), _reading(1), _reading(2)])
    _store(tmp_path, [_reading(1), _reading(2)])
    counted = count(tmp_path / "ground_truth", tmp_path)
    assert (counted.made, counted.stored, counted.lost, counted.duplicated) == (3, 2, 1, 0)


def test_without_a_table_everything_is_lost(tmp_path):
    _ground_truth(tmp_path / "ground_truth", [_reading(1)])
    counted = count(tmp_path / "ground_truth", tmp_path)
    assert (counted.made, counted.stored, counted.lost, counted.complete) == (1, 0, 1, False)


def test_a_line_cut_short_by_a_kill_is_no_reading(tmp_path):
    _ground_truth(tmp_path, [_reading(0), _reading(21)])
    path = ground_truth_path(tmp_path, "dev-0")
    for cut in range(len(path.read_bytes())):
        whole = path.read_bytes()[:cut].count(b"\n")
        copy = tmp_path / "cut"
        copy.mkdir(exist_ok=True)
        ground_truth_path(copy, "dev-0").write_bytes(path.read_bytes()[:cut])
        assert len(list(read_ground_truth(copy))) == whole


@pytest.mark.parametrize("line", [b"7\n", b"1-ab\n", b"1-ab x\n", b" 3\n", b"1-ab -3\n", b"1-ab 3 4\n", b"\n"])
def test_a_line_that_no_device_wrote_is_refused_by_file_and_line(tmp_path, line):
    ground_truth_path(tmp_path, "dev").write_bytes(b"1-ab 0\n" + line)
    with pytest.raises(GroundTruthError, match=r"dev\.readings:2: "):
        list(read_ground_truth(tmp_path))


def test_the_live_count_follows_files_that_grow_and_appear(tmp_path):
    counter = GroundTruthCounter(tmp_path)
    total = 0
    for number in range(1, 30):
        _ground_truth(tmp_path, [ReadingId(f"dev-{number % 4}", "1-ab", seq) for seq in range(number)])
        total += number
        assert counter.update() == total
    assert counter.update() == total
