"""Laws of copies of spools: what a reader of the copy sees is what the spool has, up to a position that only grows.

Copies lie in a folder here, where every step can be cut, and on a real S3 server for what that adds. A seed is printed
with each failure. UMQTT_FULL_SWEEPS=1 cuts every step of more spools.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_store import CLOSES, ObjectStore, use
from spark_helpers import RECEIVED_MS, SPARK_LIMIT_S, TOPIC, Process, fill, publish_packet, record
from umqtt_kit import __main__ as umqtt
from umqtt_testkit.waiting import eventually

from spark_ingest.errors import DataLoss, SpoolDamaged, SpoolUnreachable, UsageError
from spark_ingest.location import Location, located
from spark_ingest.spool import copied, copier
from spark_ingest.spool.blocks import Position
from spark_ingest.spool.copied import CopiedSpools, CopiedView, spools_at
from spark_ingest.spool.copier import Copier
from spark_ingest.spool.messages import messages, verify
from spark_ingest.spool.retire import retire
from spark_ingest.spool.view import SpoolView
from spark_ingest.spool.writer import Spool

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
SEEDS = range(12 if FULL else 2)


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """Counts what the copier and retention change in the store, and ends the process before one of these steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        writing = ((copier, "replace_file"), (copier, "replace_checked"), (copied, "replace_checked"))
        for module, name in (*writing, (copied, "remove_tree")):
            patch.setattr(module, name, self._counting(getattr(module, name)))
        patch.setattr(Path, "unlink", self._counting(Path.unlink))

    def _counting(self, step: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: object, **options: object) -> None:
            if self.left == 0:
                raise Killed
            self.left -= 1
            step(*arguments, **options)

        return counted


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(copier, "PIECE_BYTES", 9000)
    return Steps(monkeypatch)


def fill_some(spool: Spool, rng: random.Random) -> None:
    """Append some blocks of some messages."""
    for _ in range(rng.randint(1, 6)):
        payloads = [rng.randbytes(rng.choice((0, 5, 200, 900))) for _ in range(rng.randint(1, 3))]
        packets = [publish_packet(TOPIC, payload, 1 + i) for i, payload in enumerate(payloads)]
        spool.append(b"".join(packets), len(packets), RECEIVED_MS + rng.randint(0, 10_000))


def check_prefix(view: CopiedView, original: SpoolView, before: Position | None) -> Position | None:
    """Check that a copy is the beginning of the spool and has not become shorter; return how far it goes."""
    durable = view.durable()
    if durable is None:
        assert before is None
        return None
    assert before is None or durable[1:] >= before[1:]
    expected = list(messages(original, None, durable))
    assert list(messages(view)) == expected
    assert verify(view).damages == []
    return durable


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copier_killed_at_any_step_goes_on_and_its_readers_never_notice(
    tmp_path: Path, steps: Steps, seed: int
) -> None:
    # Planted: the state is written before its pieces; pieces that were put together are removed before the state.
    rng = random.Random(seed)
    original, root, stale = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy", []
    before, kills = None, 0
    # Some are put together, some are cut.
    segment_bytes = 4000 if seed % 2 else 40_000
    for _ in range(3):
        with Spool(original.folder, segment_bytes=segment_bytes) as spool:
            for turn in range(12):
                fill_some(spool, rng)
                # A kill may leave a piece behind that nothing names: in every second turn there is none.
                for step in range(1000 if turn % 2 else 0):
                    steps.left = step
                    try:
                        with Copier(original, root) as one:
                            one.copy()
                        break
                    except Killed:
                        kills += 1
                    finally:
                        steps.left = -1
                    view = CopiedView(root / "north")
                    before = check_prefix(view, original, before)
                    stale.append((view, before))
                with Copier(original, root) as one:
                    one.copy()
                view = CopiedView(root / "north")
                before = check_prefix(view, original, before)
                assert before == original.durable()
                stale.append((view, before))
    assert kills > 50
    # Readers that have loaded the state before still find their bytes, in pieces that are put together by now.
    for view, durable in stale:
        for segment in view.segments():
            end = view.segment_end(segment, durable)
            assert view.read(segment, 0, end) == original.read(segment, 0, end), seed
            assert list(view.headers(segment, 0, end)) == list(original.headers(segment, 0, end)), seed
    assert CopiedView(root / "north").times() == original.times()[:-1]
    assert CopiedView(root / "north").runs() == original.runs()


def test_a_segment_that_is_copied_often_has_few_pieces_and_is_written_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted: a piece for each time; one piece that is written anew each time.
    original, written = SpoolView(tmp_path / "spool" / "north"), [0]
    put = copier._put

    def counting(path: Location, data: bytes, **options: bool) -> None:
        written[0] += len(data)
        put(path, data, **options)

    monkeypatch.setattr(copier, "_put", counting)
    with Spool(original.folder) as spool, Copier(original, tmp_path / "copy") as one:
        for number in range(500):
            spool.append(publish_packet(TOPIC, bytes(1000), 1), 1, RECEIVED_MS + number)
            one.copy()
    durable = original.durable()
    assert durable is not None
    pieces = [path for path in (tmp_path / "copy" / "north").rglob("*") if path.is_file()]
    assert len(pieces) < 2 * 12
    assert written[0] < 12 * durable.position


@pytest.mark.parametrize("seed", SEEDS)
def test_retention_killed_at_any_step_removes_what_was_read_and_nothing_else(
    tmp_path: Path, steps: Steps, seed: int
) -> None:
    # Planted: pieces are removed before the mark that says so; the copier keeps segments that retention removed.
    original, root = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy"
    fill(original.folder, [[bytes(700)]] * 12, segment_bytes=1500)
    with Copier(original, root) as one:
        one.copy()
    durable = original.durable()
    assert durable is not None
    place = durable._replace(segment=3 + seed % 2, position=0)
    assert CopiedView(root / "north").remove_before(place, read_for_s=1000) == 0
    for step in range(100):
        steps.left = step
        try:
            CopiedView(root / "north").remove_before(place, read_for_s=0)
            break
        except Killed:
            pass
        finally:
            steps.left = -1
        view = CopiedView(root / "north")
        view.durable()
        kept = view.segments()
        assert kept in (original.segments(), original.segments()[place.segment :])
        first = Position(durable.spool, kept[0], 0)
        assert list(messages(view, first)) == list(messages(original, first))
    with pytest.raises(DataLoss, match=r"segment 0 of .* was removed before it was read"):
        CopiedView(root / "north").read(0, 0, 10)
    with Spool(original.folder, segment_bytes=1500) as spool, Copier(original, root) as one:
        spool.append(publish_packet(TOPIC, b"later", 1), 1, RECEIVED_MS)
        one.copy()
    assert not any((root / "north" / f"{segment:010d}").exists() for segment in range(place.segment))
    assert min(copied.read_state(root / "north").ends) == place.segment
    assert [one.payload for one in messages(CopiedView(root / "north"))][-1] == b"later"


def test_a_reader_of_another_run_removes_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "spool" / "north", [[bytes(700)]] * 12, segment_bytes=1500)
    with Copier(SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy") as one:
        one.copy()
    assert CopiedView(tmp_path / "copy" / "north").remove_before(Position("0" * 32, 4, 0), read_for_s=0) == 0


def test_segments_leave_the_collectors_disk_only_after_they_were_copied(tmp_path: Path) -> None:
    # Planted: remove_before() at the durable position of the spool, also when copying it has failed.
    original, root = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy"
    payloads = [b"%d" % number * 300 for number in range(12)]
    fill(original.folder, [[payload] for payload in payloads], segment_bytes=1500)
    before = original.segments()
    (tmp_path / "copy").write_text("in the way")
    with Copier(original, root, keep_s=0) as one:
        with pytest.raises(OSError, match="copy"):
            one.copy()
        assert original.segments() == before
        (tmp_path / "copy").unlink()
        assert one.copy() > 0
        assert original.segments() == before[-1:]
        assert one.copy() == 0
    assert [message.payload for message in messages(CopiedView(root / "north"))] == payloads


def test_what_cannot_be_copied_is_said_and_nothing_is_overwritten(tmp_path: Path) -> None:
    original, root = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy"
    fill(original.folder, [[bytes(700)]] * 6, segment_bytes=1500)
    with Copier(original, root) as one:
        one.copy()
        with pytest.raises(UsageError, match="is in use by umqtt spool copy"), Copier(original, root):
            pass
    kept = list(messages(CopiedView(root / "north")))
    # Removed before it was copied, by somebody else.
    fill(original.folder, [[bytes(700)]] * 6, segment_bytes=1500)
    durable = original.durable()
    assert durable is not None
    original.remove_before(durable, read_for_s=0)
    with Copier(original, root) as one, pytest.raises(DataLoss, match="was removed before it was copied"):
        one.copy()
    # Removed and made again.
    retire(original, [durable])
    fill(original.folder, [[b"new"]])
    with Copier(original, root) as one, pytest.raises(UsageError, match=r"does not continue the copy .* copy it to an"):
        one.copy()
    assert list(messages(CopiedView(root / "north"))) == kept


def test_a_flipped_bit_is_found_and_changes_nothing_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: an index without a checksum, whose times and counts are believed."""
    original, root = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy"
    fill(original.folder, [[bytes(700)]] * 3)
    with Copier(original, root) as one:
        one.copy()
    files = sorted(path for path in (root / "north").rglob("*") if path.is_file())
    assert len(files) == 3
    durable = original.durable()
    assert durable is not None
    headers = list(original.headers(0, 0, durable.position))
    for path in files:
        whole = path.read_bytes()
        for at in range(0, len(whole), 1 if path.suffix == ".index" else 7):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x80,)) + whole[at + 1 :])
            view = CopiedView(root / "north")
            try:
                found = [message.payload for message in messages(view)]
                assert found != [bytes(700)] * 3 or verify(view).damages
                if path.suffix == ".index":
                    assert list(view.headers(0, 0, durable.position)) == headers
            except SpoolDamaged:
                assert path.suffix != ".index"
        path.write_bytes(whole)
    assert umqtt.run(["spool", "verify", str(root)]) == 0
    assert "index is damaged: its headers are taken from the blocks" in capsys.readouterr().err


def test_a_copy_without_indexes_is_read(tmp_path: Path) -> None:
    original, root = SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy"
    fill(original.folder, [[b"%d" % number] for number in range(9)], segment_bytes=100)
    with Copier(original, root) as one:
        one.copy()
    for path in (root / "north").rglob("*.index"):
        path.unlink()
    view = CopiedView(root / "north")
    durable = view.durable()
    assert durable is not None and len(view.segments()) > 2
    for segment in view.segments():
        end = view.segment_end(segment, durable)
        assert list(view.headers(segment, 0, end)) == list(original.headers(segment, 0, end))
    assert verify(view).damages == []
    for path in (root / "north" / "0000000000").iterdir():
        path.write_bytes(b"")
    with pytest.raises(SpoolDamaged):
        list(view.headers(0, 0, view.segment_end(0, durable)))


@pytest.mark.parametrize("to", ["spool", "link", "spool/copy", ".", "link/copy", "other", "north-link"])
def test_copies_never_mix_with_spools(tmp_path: Path, to: str) -> None:
    """Planted: a copier that writes its names/ into a spool folder, which hides that folder's new messages."""
    fill(tmp_path / "spool" / "north", [[b"one"]])
    fill(tmp_path / "other" / "south", [[b"two"]])
    (tmp_path / "link").symlink_to("spool")
    (tmp_path / "north-link").symlink_to("spool/north")
    with pytest.raises(UsageError, match="give another"), Copier(SpoolView(tmp_path / "spool/north"), tmp_path / to):
        pass
    assert not list(tmp_path.rglob("names"))


def test_a_spool_called_names_is_not_copied(tmp_path: Path) -> None:
    fill(tmp_path / "spool" / "names", [[b"one"]])
    with pytest.raises(UsageError, match="give the collector another --name"):
        Copier(SpoolView(tmp_path / "spool" / "names"), tmp_path / "copy").__enter__()
    assert spools_at(tmp_path / "spool").names() == ["names"]


def test_a_spool_folder_into_which_copies_were_made_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: such a folder is read as copies, so what its collector receives from then on is invisible."""
    fill(tmp_path / "spool" / "north", [[b"one"]])
    (tmp_path / "spool" / "names").mkdir()
    (tmp_path / "spool" / "names" / "north").touch()
    with pytest.raises(UsageError, match=r"copies were made into it: .* move the folder .*names away"):
        spools_at(tmp_path / "spool")
    for command in ("ls", "cat", "verify"):
        assert umqtt.run(["spool", command, str(tmp_path / "spool")]) == 2
    assert capsys.readouterr().out == ""
    (tmp_path / "spool" / "names").rename(tmp_path / "away")
    assert spools_at(tmp_path / "spool").names() == ["north"]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Location:
    """Provide a location for this test alone."""
    use(store, monkeypatch)
    return located(f"s3://readings/{tmp_path.name}")


def test_on_an_object_store_copies_are_read_while_they_grow_and_shrink(bucket: Location, tmp_path: Path) -> None:
    original = SpoolView(tmp_path / "spool" / "north")
    assert CopiedSpools(bucket).names() == []
    assert CopiedView(bucket / "north").durable() is None
    rng, before = random.Random(3), None
    with Spool(original.folder, segment_bytes=4000) as spool, Copier(original, bucket) as one:
        for _ in range(8):
            fill_some(spool, rng)
            one.copy()
            before = check_prefix(CopiedView(bucket / "north"), original, before)
    assert before == original.durable()
    assert CopiedSpools(bucket).names() == ["north"]
    assert isinstance(spools_at(bucket), CopiedSpools)
    with pytest.raises(UsageError, match=f"north is the spool of one collector: give {bucket}, "):
        spools_at(bucket / "north").names()
    view = CopiedView(bucket / "north")
    first = Position(before.spool, view.segments()[1] if view.durable() else 0, 0)
    assert view.remove_before(first, read_for_s=0) == 1
    assert list(messages(CopiedView(bucket / "north"), first)) == list(messages(original, first))


def test_a_store_is_not_asked_a_hundred_times_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted: each look at the durable position reads the state.
    fill(tmp_path / "spool" / "north", [[b"x"]])
    with Copier(SpoolView(tmp_path / "spool" / "north"), tmp_path / "copy") as one:
        one.copy()
    reads = [0]
    monkeypatch.setattr(copied, "read_state", lambda place, read=copied.read_state: reads.append(1) or read(place))
    spools = spools_at(tmp_path / "copy")
    expected = SpoolView(tmp_path / "spool" / "north").durable()
    for _ in range(200):
        assert [spools.view(name).durable() for name in spools.names()] == [expected]
    assert sum(reads) <= 2
    there = pickle.loads(pickle.dumps(spools))
    assert there.view("north").read(0, 0, 10) == spools.view("north").read(0, 0, 10)


def test_a_store_that_is_away_or_refuses_is_told_from_a_copy_that_is_not_there(
    store: ObjectStore, bucket: Location, tmp_path: Path
) -> None:
    fill(tmp_path / "spool" / "north", [[b"x"]])
    with Copier(SpoolView(tmp_path / "spool" / "north"), bucket) as one:
        one.copy()
        store.answer(CLOSES)
        try:
            for ask in (CopiedSpools(bucket).names, CopiedView(bucket / "north").durable):
                with pytest.raises(SpoolUnreachable, match=r"cannot read s3://readings/.*: the store") as error:
                    ask()
                assert not error.value.refused
        finally:
            store.answer(None)
    nowhere = located("s3://nowhere/copies")
    with pytest.raises(SpoolUnreachable, match="there is no such bucket: make it") as error:
        CopiedSpools(nowhere).names()
    assert error.value.refused


class TestCommand:
    @pytest.fixture(autouse=True)
    def environment(self, store: ObjectStore, bucket: Location) -> None:
        self.child = os.environ | store.environment()

    def copying(self, spool: Path, bucket: Location, *options: str) -> Process:
        command = [sys.executable, "-m", "umqtt_kit", "spool", "copy", spool, "--to", bucket, *options]
        return Process(["sh", "-c", 'exec "$@" 2>&1', "sh", *command], env=self.child)

    def test_it_copies_while_it_is_killed_and_the_collector_goes_on(self, bucket: Location, tmp_path: Path) -> None:
        rng, original = random.Random(5), SpoolView(tmp_path / "spool" / "north")
        with Spool(original.folder, segment_bytes=20_000) as spool:
            for _ in range(3):
                with self.copying(tmp_path / "spool", bucket, "--every", "0.1") as process:
                    for _ in range(5):
                        fill_some(spool, rng)
                    eventually(lambda: CopiedView(bucket / "north").durable() == original.durable())
                    fill_some(spool, rng)
                    process.signal(signal.SIGKILL)
                    process.finish()
            assert umqtt.run(["spool", "copy", str(tmp_path / "spool"), "--to", str(bucket), "--once"]) == 0
        assert list(messages(CopiedView(bucket / "north"))) == list(messages(original))

    def test_the_commands_that_show_a_spool_show_a_copy(
        self, bucket: Location, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fill(tmp_path / "spool" / "north", [[b"one"], [b"two"]])
        fill(tmp_path / "spool" / "south", [[b"three"]])
        assert umqtt.run(["spool", "copy", str(tmp_path / "spool"), "--to", str(bucket), "--once"]) == 0
        assert "bytes copied" in capsys.readouterr().out
        shown = []
        for where in (str(tmp_path / "spool"), str(bucket)):
            for arguments in (["ls", where, "--json"], ["cat", where, "--json"]):
                assert umqtt.run(["spool", *arguments]) == 0
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1]
        assert umqtt.run(["spool", "verify", str(bucket)]) == 0

    def test_a_store_that_goes_away_is_waited_for_and_one_that_refuses_ends_it(
        self, store: ObjectStore, bucket: Location, tmp_path: Path
    ) -> None:
        original = SpoolView(tmp_path / "spool" / "north")
        fill(original.folder, [[b"one"]])
        store.answer(CLOSES)
        try:
            with self.copying(tmp_path / "spool", bucket, "--every", "0.1") as process:
                assert process.wait_for_line("cannot copy to").endswith("trying again every 0.1 s")
                store.answer(None)
                eventually(lambda: CopiedView(bucket / "north").durable() == original.durable())
                assert process.terminate()[0] == 0
        finally:
            store.answer(None)
        with self.copying(tmp_path / "spool", "s3://nowhere/copies") as process:
            code, out, _ = process.finish()
            assert code == 1 and "there is no such bucket: make it" in out, out

    def test_wrong_use_is_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "spool").mkdir()
        fill(tmp_path / "full" / "north", [[b"one"]])
        for where, to, said in (
            (tmp_path / "spool", tmp_path / "copy", "there is no spool in"),
            (tmp_path / "none", tmp_path / "copy", "does not exist"),
            (tmp_path / "full", tmp_path / "full", "the spool folder: give another"),
            (tmp_path / "spool", "http://host/copy", "does not begin the URL of an object store"),
            (tmp_path / "spool", "s3://name:secret@bucket/copy", "credentials and options do not belong"),
        ):
            assert umqtt.run(["spool", "copy", str(where), "--to", str(to), "--once"]) == 2
            shown = capsys.readouterr().err.strip()
            assert said in shown and "\n" not in shown and "secret" not in shown


@pytest.mark.skipif(not FULL, reason="a full sweep: set UMQTT_FULL_SWEEPS=1; the cluster's test reads copies too")
def test_spark_makes_tables_of_a_copy_and_retention_shrinks_it(
    store: ObjectStore, bucket: Location, tmp_path: Path
) -> None:
    original = SpoolView(tmp_path / "spool" / "north")
    records = [record("pump-7", "b", seq) for seq in range(200)]
    fill(original.folder, [records[at : at + 7] for at in range(0, 200, 7)], segment_bytes=4000)
    with Copier(original, bucket) as one:
        one.copy()
    before = CopiedView(bucket / "north").segments()
    tables = tmp_path / "tables"
    command = [sys.executable, "-m", "spark_ingest.pipeline", "--spool", bucket, "--tables", tables, "--once", "--json"]
    command += ["--checkpoint", tmp_path / "checkpoint", "--retention", "0", "--no-gold", "--max-rows", "50"]
    with Process(command, env=os.environ | store.environment()) as process:
        code, out, err = process.finish(SPARK_LIMIT_S)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["rows_silver"] == 200
    # Spark tells the source of the end of each micro-batch when it begins the next one.
    assert before[0] < CopiedView(bucket / "north").segments()[0] <= before[-1]
