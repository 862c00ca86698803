"""Laws of ``umqtt spool retire``: queries go on without the spool, and nothing unread is removed."""

import json
from pathlib import Path

import pytest
from spark_helpers import fill
from test_offsets import numbered, payloads

from spark_ingest.errors import DataLoss
from spark_ingest.pipeline.process import READ_UP_TO
from spark_ingest.source.offsets import Offset, SpoolTree
from spark_ingest.spool import retire as retire_module
from spark_ingest.spool.writer import Spool
from umqtt_cli.__main__ import run


def write_checkpoint(folder: Path, offset: Offset) -> Path:
    """Write what the pipeline leaves in its checkpoint: the offset up to which messages are in the tables."""
    (folder / "umqtt").mkdir(parents=True, exist_ok=True)
    (folder / "umqtt" / READ_UP_TO).write_text(json.dumps(offset))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> SpoolTree:
    for number, name in enumerate(("north", "south")):
        fill(tmp_path / "spool" / name, numbered(100 * number, 3, 2))
    return SpoolTree(tmp_path / "spool")


def retire(folder: Path, *checkpoints: Path) -> int:
    options = [text for checkpoint in checkpoints for text in ("--checkpoint", str(checkpoint))]
    return run(["spool", "retire", str(folder / "spool"), "north", *options])


@pytest.mark.parametrize("began_again", ["not", "before", "after"])
def test_a_query_goes_on_without_a_retired_spool_and_forgets_it(tree, tmp_path, began_again):
    """Planted: a spool that is removed without the position up to which it was read; an offset that keeps its name."""
    start = tree.latest()
    if began_again == "before":
        fill(tmp_path / "spool" / "north", [])  # its last start received nothing
    assert retire(tmp_path, write_checkpoint(tmp_path / "checkpoint", start)) == 0
    assert tree.spools.names() == ["south"]
    if began_again == "after":
        fill(tmp_path / "spool" / "north", numbered(50, 2, 2))
    assert tree.ranges(start, start) == [], "a micro-batch that was planned before"
    fill(tmp_path / "spool" / "south", numbered(200, 1, 2))
    end = tree.advance(start, tree.latest())
    new = [b"50", b"51", b"52", b"53"] if began_again == "after" else []
    assert payloads(tree, tree.ranges(start, end)) == [*new, b"200", b"201"]
    assert set(end) == ({"north", "south"} if new else {"south"})
    assert tree.advance(end, tree.latest()) == end


def test_what_is_not_read_is_not_removed_and_said_in_one_line(tree, tmp_path, capsys):
    """Planted: only the first checkpoint is checked; the offsets of an uncommitted micro-batch are used."""
    read = write_checkpoint(tmp_path / "read", tree.latest())
    behind = write_checkpoint(tmp_path / "behind", tree.advance(tree.earliest(), tree.latest(), max_rows=8))
    never = write_checkpoint(tmp_path / "never", {"south": tree.latest()["south"]})
    empty = tmp_path / "empty"
    empty.mkdir()
    before = sorted(path.name for path in (tmp_path / "spool" / "north").iterdir())

    def refused(code: int, text: str, *checkpoints: Path) -> None:
        assert retire(tmp_path, *checkpoints) == code
        _, err = capsys.readouterr()
        assert err.count("\n") == 1 and text in err, err

    refused(1, "has not read", read, behind)
    refused(1, "has not read", never)
    refused(2, "holds no micro-batch that was committed", empty)
    with Spool(tmp_path / "spool" / "north"):
        refused(2, "runs: stop it first", read)
    assert run(["spool", "retire", str(tmp_path / "spool"), "east", "--checkpoint", str(read)]) == 2
    assert "there is no spool east" in capsys.readouterr().err
    left = sorted(path.name for path in (tmp_path / "spool" / "north").iterdir())
    assert set(before) <= set(left) and not [name for name in left if name.endswith(".retired")]


def test_a_query_that_had_not_read_all_of_a_retired_spool_stops(tree, tmp_path):
    start = tree.advance(tree.earliest(), tree.latest(), max_rows=8)
    assert start["north"] != tree.latest()["north"]
    assert retire(tmp_path, write_checkpoint(tmp_path / "checkpoint", tree.latest())) == 0
    with pytest.raises(DataLoss, match="north is gone"):
        tree.advance(start, tree.latest())


@pytest.mark.parametrize("files", range(5))
def test_broken_off_anywhere_it_is_repeated(tree, tmp_path, monkeypatch, files):
    start = tree.latest()
    checkpoint = write_checkpoint(tmp_path / "checkpoint", start)
    unlink, left = Path.unlink, files

    def cut(path: Path, **options: bool) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        unlink(path, **options)

    monkeypatch.setattr(retire_module.Path, "unlink", cut)
    retire(tmp_path, checkpoint)
    monkeypatch.undo()
    assert set(tree.advance(start, tree.latest())) == ({"south"} if files else {"north", "south"})
    assert retire(tmp_path, checkpoint) == 0
    assert set(tree.advance(start, tree.latest())) == {"south"}
    names = {path.suffix or path.name for path in (tmp_path / "spool" / "north").iterdir()}
    assert names == {".retired", "lock"}
