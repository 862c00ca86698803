"""Laws of the spool: durable before visible, and every kind of damage is either a torn tail or an error."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, fill, publish_packet

from spark_ingest.durable import sync_data
from spark_ingest.errors import SpoolDamaged, SpoolInUse, SpoolWriteFailed, UsageError
from spark_ingest.offsets import SpoolTree
from spark_ingest.rows import read_range
from spark_ingest.spool import Spool
from spark_ingest.spool_format import POSITION_BYTES, decode_position, segment_path
from spark_ingest.spool_reader import SpoolView


def payloads_in(folder: Path) -> list[bytes]:
    """Everything that a reader may see."""
    tree = SpoolTree(folder.parent)
    return [
        payload
        for r in tree.ranges({}, tree.latest())
        for batch in read_range(Path(r.folder), r.collector, r.spool, r.segment, r.start, r.end)
        for payload in batch["payload"].to_pylist()
    ]


def durable(folder: Path) -> tuple[int, int]:
    place = SpoolView(folder).durable()
    assert place is not None
    return place.segment, place.position


def test_what_was_appended_is_read_back_in_order_across_segments_and_starts(tmp_path):
    folder = tmp_path / "north"
    fill(folder, [[b"a", b"b"], [b"c"]], segment_bytes=1)
    fill(folder, [[b"d"], [b""], [bytes(range(256)) * 900]])
    assert payloads_in(folder) == [b"a", b"b", b"c", b"d", b"", bytes(range(256)) * 900]
    assert SpoolView(folder).segments() == [0, 1, 2], "one for each full one, and a new one at the second start"


def test_a_cut_at_every_byte_of_an_unsynced_block_keeps_what_is_durable_and_nothing_torn(tmp_path):
    folder = tmp_path / "north"
    fill(folder, [[b"one", b"two"], [b"three"]])
    before = (folder / "pos").read_bytes()
    _, synced = durable(folder)
    with Spool(folder) as spool:
        spool.append(publish_packet(TOPIC, b"four"), 1, RECEIVED_MS)
    tail = segment_path(folder, 1).read_bytes()
    whole = segment_path(folder, 0).read_bytes() + tail
    for cut in range(synced, len(whole) + 1):
        # The picture after a power cut: pos as it was before the append, any part of the block on the disk.
        copy = tmp_path / "cut" / "north"
        shutil.copytree(folder, copy)
        segment_path(copy, 1).unlink()
        segment_path(copy, 0).write_bytes(whole[:cut])
        (copy / "pos").write_bytes(before)
        with Spool(copy) as spool:
            assert spool.truncated_bytes == (cut - synced) % len(tail)
        complete = [b"four"] if cut == len(whole) else []
        assert payloads_in(copy) == [b"one", b"two", b"three", *complete], f"cut at byte {cut}"
        shutil.rmtree(copy.parent)


def test_a_flipped_bit_in_any_byte_below_the_durable_position_stops_the_collector_and_the_reader(tmp_path):
    folder = tmp_path / "north"
    fill(folder, [[b"one"], [b"two"]])
    good = segment_path(folder, 0).read_bytes()
    for at in range(len(good)):
        segment_path(folder, 0).write_bytes(good[:at] + bytes((good[at] ^ 0x10,)) + good[at + 1 :])
        with pytest.raises(SpoolDamaged, match=r"0000000000\.seg is damaged at byte"):
            Spool(folder)
        with pytest.raises(SpoolDamaged):
            payloads_in(folder)
    segment_path(folder, 0).write_bytes(good[:-1])
    with pytest.raises(SpoolDamaged):
        Spool(folder)
    segment_path(folder, 0).write_bytes(good)
    assert payloads_in(folder) == [b"one", b"two"]


def test_damage_in_a_finished_segment_is_an_error_even_when_pos_is_old(tmp_path):
    folder = tmp_path / "north"
    fill(folder, [[b"one"]])
    old = (folder / "pos").read_bytes()
    fill(folder, [[b"two"]])
    (folder / "pos").write_bytes(old)
    with segment_path(folder, 0).open("ab") as segment:
        segment.write(b"garbage")
    with pytest.raises(SpoolDamaged):
        Spool(folder)


@pytest.mark.parametrize("damage", ["flipped", "short", "missing", "of another spool"])
def test_a_damaged_pos_is_an_error_and_not_an_empty_spool(tmp_path, damage):
    folder = tmp_path / "north"
    fill(folder, [[b"one"]])
    raw = (folder / "pos").read_bytes()
    if damage == "missing":
        (folder / "pos").unlink()
    elif damage == "of another spool":
        fill(tmp_path / "south", [[b"one"]])
        shutil.copy(tmp_path / "south" / "pos", folder / "pos")
    else:
        (folder / "pos").write_bytes(raw[:-1] if damage == "short" else b"x" + raw[1:])
    with pytest.raises(SpoolDamaged, match="pos"):
        Spool(folder)


def test_pos_is_published_only_after_the_sync(tmp_path):
    """At every sync of a segment, readers still see the position from before."""
    folder = tmp_path / "north"
    seen: list[tuple[int, int]] = []

    def sync(fd: int) -> None:
        place = decode_position((folder / "pos").read_bytes()) if (folder / "pos").exists() else None
        if place and os.path.samestat(os.fstat(fd), segment_path(folder, place.segment).stat()):
            seen.append((place.position, os.fstat(fd).st_size))
        sync_data(fd)

    fill(folder, [[b"one"], [b"two"], [b"three"]], sync=sync)
    sizes = [size for _, size in seen]
    assert [position for position, _ in seen] == [0, *sizes[:-1]]
    assert len(seen) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_sync_shows_nothing_and_the_next_append_uses_a_new_segment(tmp_path, number):
    folder = tmp_path / "north"
    failing = False

    def sync(fd: int) -> None:
        if failing:
            raise OSError(number, os.strerror(number))
        sync_data(fd)

    with Spool(folder, sync=sync) as spool:
        spool.append(publish_packet(TOPIC, b"one"), 1, RECEIVED_MS)
        before = spool.durable
        failing = True
        for _ in range(2):
            with pytest.raises(SpoolWriteFailed, match="nothing was acknowledged"):
                spool.append(publish_packet(TOPIC, b"lost"), 1, RECEIVED_MS)
            assert spool.durable == before
            assert payloads_in(folder) == [b"one"]
        failing = False
        spool.append(publish_packet(TOPIC, b"two"), 1, RECEIVED_MS)
        assert payloads_in(folder) == [b"one", b"two"]
        assert spool.durable.segment == before.segment + 1
    with Spool(folder):
        assert payloads_in(folder) == [b"one", b"two"]


def test_a_second_collector_on_the_same_spool_is_refused_with_the_first_ones_process_id(tmp_path):
    with Spool(tmp_path / "north"), pytest.raises(SpoolInUse, match=f"process id {os.getpid()}"):
        Spool(tmp_path / "north")
    Spool(tmp_path / "north").close()


def test_every_spool_has_an_identity_that_outlives_its_process(tmp_path):
    with Spool(tmp_path / "north") as first:
        identity = first.uuid
    with Spool(tmp_path / "north") as again, Spool(tmp_path / "south") as other:
        assert again.uuid == identity != other.uuid


def test_a_folder_that_cannot_be_made_is_a_usage_error_that_names_the_option(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="choose another --spool"):
        Spool(tmp_path / "file" / "north")


def test_the_position_file_has_a_fixed_size(tmp_path):
    fill(tmp_path / "north", [[b"one"]])
    assert (tmp_path / "north" / "pos").stat().st_size == POSITION_BYTES
