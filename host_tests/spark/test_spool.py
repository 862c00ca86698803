"""Laws of the spool: durable before visible, and every kind of damage is either a torn tail or an error."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, fill, publish_packet

from spark_ingest import durable as durable_module
from spark_ingest.errors import SpoolDamaged, SpoolInUse, SpoolWriteFailed, UsageError
from spark_ingest.spool import writer
from spark_ingest.spool.blocks import (
    POSITION_BYTES,
    Position,
    Run,
    decode_position,
    run_path,
    segment_path,
    spool_of,
)
from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool
from umqtt_cli.durable import sync_data


def payloads_in(folder: Path) -> list[bytes]:
    """Return everything that a reader may see."""
    return [message.payload for message in messages(SpoolView(folder))]


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
        # The state after a power cut: pos as before the append, and any part of the block on the disk.
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
    """At every sync of a segment, readers still see the earlier position."""
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


def identities(folder: Path) -> list[str | None]:
    """Return the UUID of every segment."""
    view = SpoolView(folder)
    return [spool_of(view.runs(), segment) for segment in view.segments()]


def test_every_run_has_an_identity_of_its_own_that_its_segments_keep(tmp_path):
    north = tmp_path / "north"
    seen = []
    for run in range(4):
        with Spool(north, segment_bytes=1) as spool:
            identity = spool.durable.spool
            for _ in range(run):
                spool.append(publish_packet(TOPIC, b"x"), 1, RECEIVED_MS)
            assert spool.durable.spool == identity == SpoolView(north).durable().spool
        seen += [identity] * max(1, run)
        assert identities(north) == seen
    with Spool(tmp_path / "south") as other:
        assert other.durable.spool not in seen
    assert len(set(seen)) == 4


def test_a_segment_number_that_is_given_again_has_another_identity(tmp_path):
    north, copy = tmp_path / "north", tmp_path / "copy"
    fill(north, [[b"one"]])
    shutil.copytree(north, copy)
    fill(north, [[b"two"]])
    before = identities(north)
    shutil.rmtree(north)
    shutil.copytree(copy, north)
    fill(north, [[b"other"]])
    assert identities(north)[0] == before[0] and identities(north)[1] != before[1]
    for path in north.iterdir():
        if path.name != "spool.json":
            path.unlink()
    fill(north, [[b"from the beginning"]])
    assert identities(north)[0] not in before


def test_names_of_runs_whose_segments_are_gone_are_removed_at_the_next_start(tmp_path):
    north = tmp_path / "north"
    for _ in range(6):
        fill(north, [[b"x"]])
    kept = identities(north)[3:]
    view = SpoolView(north)
    assert view.remove_before(Position(kept[0], 3, 0), read_for_s=0) == 3
    # A start that ended before its segment existed.
    run_path(north, Run(6, "0" * 32)).touch()
    fill(north, [[b"y"]])
    assert identities(north)[:-1] == kept and "0" * 32 not in identities(north)
    assert len(list(north.glob("*.run"))) == 4


@pytest.mark.parametrize("replaced", ["the folder", "the lock"])
def test_a_folder_that_was_replaced_under_a_running_collector_gets_no_segment_of_it(tmp_path, replaced):
    """Its `pos` is not the one that the collector has open: nobody would see what was acknowledged."""
    north = tmp_path / "north"
    fill(north, [[b"one"]])
    shutil.copytree(north, tmp_path / "copy")
    with Spool(north) as spool:
        spool.append(publish_packet(TOPIC, b"two"), 1, RECEIVED_MS)
        if replaced == "the lock":
            (north / "lock").unlink()
        north.rename(tmp_path / "away")
        with pytest.raises(SpoolWriteFailed):
            spool.rotate()
        (tmp_path / ("away" if replaced == "the lock" else "copy")).rename(north)
        if replaced == "the lock":
            Spool(north).close()
        before = sorted(path.name for path in north.iterdir())
        for write in (spool.rotate, lambda: spool.append(publish_packet(TOPIC, b"three"), 1, RECEIVED_MS)):
            with pytest.raises(SpoolDamaged, match="was replaced"):
                write()
        assert sorted(path.name for path in north.iterdir()) == before


def test_a_folder_that_was_away_and_is_put_back_is_written_again(tmp_path):
    north = tmp_path / "north"
    with Spool(north) as spool:
        spool.append(publish_packet(TOPIC, b"one"), 1, RECEIVED_MS)
        north.rename(tmp_path / "away")
        with pytest.raises(SpoolWriteFailed):
            spool.rotate()
        (tmp_path / "away").rename(north)
        spool.append(publish_packet(TOPIC, b"two"), 1, RECEIVED_MS)
    assert payloads_in(north) == [b"one", b"two"]


def test_a_disk_that_is_full_at_the_start_leaves_the_last_run_its_name(tmp_path, monkeypatch):
    north = tmp_path / "north"
    fill(north, [[b"one"]])
    before = SpoolView(north).durable()
    full = True

    def open_if_there_is_room(path: Path, flags: int, mode: int = 0o777) -> int:
        if full and flags & os.O_CREAT and str(path).endswith((".seg", ".run")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os_open(path, flags, mode)

    os_open = os.open
    monkeypatch.setattr(os, "open", open_if_there_is_room)
    with Spool(north) as spool:
        assert spool.durable == SpoolView(north).durable() == before
        with pytest.raises(SpoolWriteFailed):
            spool.rotate()
        full = False
        spool.append(publish_packet(TOPIC, b"two"), 1, RECEIVED_MS)
        assert spool.durable == SpoolView(north).durable()
    assert payloads_in(north) == [b"one", b"two"]
    assert identities(north)[0] == before.spool and len(set(identities(north))) == 2


def test_every_folder_that_is_made_for_a_spool_is_made_durable_before_its_first_segment(tmp_path, monkeypatch):
    """A power cut must not remove a folder, and with it what was acknowledged."""
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        writer, "sync_directory", lambda path: synced.append((path, segment_path(folder, 0).exists())) or sync(path)
    )
    sync = durable_module.sync_directory
    folder = tmp_path / "var" / "spool" / "north"
    Spool(folder).close()
    before = {path for path, has_segment in synced if not has_segment}
    assert {tmp_path, tmp_path / "var", tmp_path / "var" / "spool"} <= before
    # As after a start that ended in between: the folder exists, but its entry in the parent may not be durable.
    (tmp_path / "var" / "spool" / "south").mkdir()
    synced.clear()
    Spool(tmp_path / "var" / "spool" / "south").close()
    assert tmp_path / "var" / "spool" in {path for path, _ in synced}


def test_a_folder_that_cannot_be_made_is_a_usage_error_that_names_the_option(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="choose another --spool"):
        Spool(tmp_path / "file" / "north")


def test_the_position_file_has_a_fixed_size(tmp_path):
    fill(tmp_path / "north", [[b"one"]])
    assert (tmp_path / "north" / "pos").stat().st_size == POSITION_BYTES


def test_only_the_user_of_the_collector_can_read_the_spool(tmp_path):
    """Planted: files as the umask leaves them."""
    before = os.umask(0)
    try:
        folder = tmp_path / "spool" / "north"
        fill(folder, [[b"x" * 1000]] * 10, segment_bytes=4096)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
    assert len(modes) > 4 and set(modes.values()) == {"0o600"}, modes
