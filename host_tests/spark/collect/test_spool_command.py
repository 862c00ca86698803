"""Laws of ``umqtt spool``: it shows what a spool contains, finds every damage, and changes nothing."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, Process, fill, in_version_5, publish_packet
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.errors import UsageError
from spark_ingest.spool.blocks import segment_path
from spark_ingest.spool.messages import messages, verify
from spark_ingest.spool.view import Spools, SpoolView
from spark_ingest.spool.writer import Spool
from umqtt_cli.__main__ import run

TOPICS = ["fleet/a/telemetry", "fleet/b/status", "fleet/a/status"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "spool"
    with Spool(root / "north", segment_bytes=150) as spool:
        for group in range(6):
            packets = [publish_packet(topic, b"%d" % group, 1 + i, qos=i % 2) for i, topic in enumerate(TOPICS)]
            spool.append(b"".join(packets), len(packets), RECEIVED_MS + group)
    fill(root / "south", [[b"\xff\x00 line\nend", b"text"]])
    return root


def told(capsys, *arguments: object) -> list[dict]:
    assert run(["spool", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_ls_tells_what_each_spool_holds(tree, capsys):
    before = contents(tree)
    north, south = told(capsys, "ls", tree)
    view = Spools(tree).view("north")
    place = view.durable()
    assert (north["name"], north["spool"], north["segment"], north["position"]) == ("north", *place)
    assert north["segments"] == len(view.segments()) > 2
    assert north["bytes"] == sum(segment_path(tree / "north", s).stat().st_size for s in view.segments())
    assert north["oldest"] == "2026-11-18T11:06:40.000Z"
    assert south["name"] == "south"
    assert run(["spool", "ls", str(tree)]) == 0
    assert place.spool in capsys.readouterr().out
    assert contents(tree) == before


def test_the_folder_of_one_collector_is_shown_and_elsewhere_an_error_that_names_the_folder_to_give(
    tree, tmp_path, capsys, monkeypatch
):
    """Planted: umqtt ingest says ready, reads nothing, and ends with 0."""
    one = tree / "north"
    for command in ("ls", "cat", "verify"):
        assert told(capsys, command, one)
    rest = ["--tables", tmp_path / "tables", "--checkpoint", tmp_path / "checkpoint"]
    for command in (
        ["ingest", "--spool", one, *rest, "--once"],
        ["spool", "retire", one, "north", "--checkpoint", tmp_path],
    ):
        assert run(list(map(str, command))) == 2
        err = capsys.readouterr().err
        assert f"{one} is the spool of one collector: give {tree}, which has the spools of all" in err
        assert err.count("\n") == 1
    monkeypatch.chdir(one)
    with pytest.raises(UsageError, match=f"give {tree}, "):
        Spools(Path()).names()


def test_cat_prints_every_message_in_order_with_its_place(tree, capsys):
    found = told(capsys, "cat", tree / "north")
    assert [(m["topic"], m["payload"]) for m in found] == [(topic, str(g)) for g in range(6) for topic in TOPICS]
    assert [m["qos"] for m in found[:3]] == [0, 1, 0]
    for m in found:
        raw = segment_path(tree / "north", m["segment"]).read_bytes()
        assert raw[m["position"]] & 0xF0 == 0x30
        assert raw[m["position"] + 4 :].startswith(m["topic"].encode())
    assert len({(m["segment"], m["position"]) for m in found}) == len(found)
    assert [m["payload"] for m in told(capsys, "cat", tree, "--topic", "fleet/+/status", "-n", 3)] == ["0", "0", "1"]
    binary, text = told(capsys, "cat", tree / "south")
    assert (binary["payload"], binary["hex"], text["payload"]) == (None, "ff00206c696e650a656e64", "text")
    assert run(["spool", "cat", str(tree / "south")]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(r"fleet/pump/telemetry \xff\x00 line\nend")


def test_cat_shows_the_properties_of_a_message_behind_it(tmp_path, capsys):
    """Planted: a line end of a header that begins a line."""
    pairs = [(b"site", b"north"), (b"site", b"a\nb"), (b"\x1b[2J", b"\xff")]
    properties = encoder.properties(content_type=b"text/plain", correlation_data=b"\xff", user_property=pairs)
    with Spool(tmp_path / "north") as spool:
        packets = encoder.publish(b"t", b"x", 1, 1, properties=properties) + in_version_5(publish_packet("t", b"y"))
        spool.append(packets, 2, RECEIVED_MS, 5)
    first, second = told(capsys, "cat", tmp_path)
    assert first["properties"] == {
        "headers": [["site", "north"], ["site", "a\nb"], ["\x1b[2J", {"hex": "ff"}]],
        "content_type": "text/plain",
        "correlation_data": {"hex": "ff"},
    }
    assert second["properties"] == {}
    assert run(["spool", "cat", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-18T11:06:40.000Z t x",
        "    header site: north",
        r"    header site: a\nb",
        r"    header \x1b[2J: \xff",
        "    content_type: text/plain",
        r"    correlation_data: \xff",
        "2026-11-18T11:06:40.000Z t y",
    ]


@pytest.mark.parametrize("received_ms", [9_214_646_400_000, 253_402_300_800_000, (1 << 64) - 1])
def test_a_time_that_no_data_frame_has_is_shown_as_the_latest_one(tmp_path, capsys, received_ms):
    """Planted: the time as it stands in the block."""
    with Spool(tmp_path / "north") as spool:
        spool.append(publish_packet("t", b"x"), 1, received_ms)
    assert [m["received"] for m in told(capsys, "cat", tmp_path)] == ["2261-12-31T23:59:59.999Z"]
    assert [m["oldest"] for m in told(capsys, "ls", tmp_path)] == ["2261-12-31T23:59:59.999Z"]


def test_cat_follows_a_spool_that_is_written(tree, tmp_path):
    command = [sys.executable, "-m", "umqtt_cli", "spool", "cat", tree / "north", "--follow", "--new"]
    with Spool(tree / "north", segment_bytes=150) as spool, Process([*command, "-n", "3"]) as one:
        # Nothing signals that it has begun to watch: so write a message for each look, until it has seen three.
        for i in range(1000):
            spool.append(publish_packet("fleet/a/telemetry", b"%d" % i), 1, RECEIVED_MS)
            try:
                code, out, err = one.finish(timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                continue
    assert (code, err) == (0, "")
    numbers = [int(line.split()[-1]) for line in out.splitlines()]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_cat_follows_a_spool_that_is_removed_and_made_anew(tree):
    """It reads the new spool from the beginning, although the old one had got further."""
    folder = tree / "north"
    *_, last = messages(SpoolView(folder))
    with Process([sys.executable, "-m", "umqtt_cli", "spool", "cat", folder, "--follow", "-n", "20", "--json"]) as one:
        one.wait_for_line(f'{{"collector": "north", "segment": {last.segment}, "position": {last.position},')
        folder.rename(tree / "gone")
        fill(tree / "new", [[b"new"], [b"newer"]])
        (tree / "new").rename(folder)
        code, out, err = one.finish()
    assert (code, err) == (0, "")
    assert [json.loads(line)["payload"] for line in out.splitlines()] == ["new", "newer"]


def test_cat_into_head_ends_without_a_word(tree):
    command = f"{sys.executable} -m umqtt_cli spool cat {tree} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_finds_a_flipped_bit_in_every_byte_and_says_where(tree, capsys):
    assert run(["spool", "verify", str(tree)]) == 0
    assert "ok, 18 messages in 6 blocks" in capsys.readouterr().out
    view = SpoolView(tree / "north")
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for segment in view.segments()[:-1]:
        path = segment_path(tree / "north", segment)
        good = path.read_bytes()
        for at in range(len(good)):
            path.write_bytes(good[:at] + bytes((good[at] ^ 1 << rng.randrange(8),)) + good[at + 1 :])
            (damage, *_) = verify(view).damages
            assert damage.segment == segment and damage.position is not None and damage.position <= at
        path.write_bytes(good)
    assert verify(view).damages == []


@pytest.mark.parametrize("damage", ["flip", "short", "missing", "pos", "empty pos"])
def test_verify_ends_with_exit_code_5_and_names_the_place(tree, capsys, damage):
    first = segment_path(tree / "north", 1)
    if damage == "flip":
        raw = bytearray(first.read_bytes())
        raw[30] ^= 1
        first.write_bytes(raw)
    elif damage == "short":
        last = SpoolView(tree / "north").durable()
        os.truncate(segment_path(tree / "north", last.segment), max(0, last.position - 1))
    elif damage == "missing":
        first.unlink()
    else:
        (tree / "north" / "pos").write_bytes(b"" if damage == "empty pos" else bytes(44))
    assert run(["spool", "verify", str(tree), "--json"]) == 5
    north, south = map(json.loads, capsys.readouterr().out.splitlines())
    assert north["damages"] and not south["damages"]
    if damage in ("flip", "missing"):
        assert north["damages"][0]["segment"] == 1
    assert run(["spool", "verify", str(tree)]) == 5
    assert "damaged" in capsys.readouterr().out


def test_a_segment_that_is_gone_is_one_line(tree, capsys, monkeypatch):
    monkeypatch.setattr(SpoolView, "segment_end", lambda *_: 1000)
    segment_path(tree / "north", 0).unlink()
    monkeypatch.setattr(SpoolView, "segments", lambda _self: [0])
    assert run(["spool", "ls", str(tree)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "was removed before it was read" in err


def test_a_wrong_count_is_found_although_the_checksum_is_right(tmp_path):
    with Spool(tmp_path / "north") as spool:
        spool.append(publish_packet("t", b"x") * 2, 3, RECEIVED_MS)
    (damage,) = verify(SpoolView(tmp_path / "north")).damages
    assert "announces 3 messages and holds 2" in damage.what


def test_a_torn_tail_above_the_durable_position_is_no_damage(tree):
    last = SpoolView(tree / "north").durable()
    with segment_path(tree / "north", last.segment).open("ab") as segment:
        segment.write(b"MQB1 half a block")
    assert verify(SpoolView(tree / "north")).damages == []
    assert len(list(messages(SpoolView(tree / "north")))) == 18


def test_damage_met_by_cat_is_one_line_and_exit_code_5(tree, capsys):
    path = segment_path(tree / "north", 0)
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    assert run(["spool", "cat", str(tree)]) == 5
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and "segment 0 is damaged at byte 86" in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ls", "nowhere"], "cannot read the spool folder"),
        (["ls", "."], "there is no spool"),
        (["cat", ".", "--topic", "a/#/b"], "whole levels"),
        (["ls", "https://host:7071"], "does not begin the URL of an object store"),
        (["ls", "s3://readings/spool"], "run the collector where Spark sees its --spool"),
        (["ls", "a-file"], "cannot read the spool folder a-file: Not a directory"),
        (["ls", "x" * 300], "File name too long"),
        *(([command, "odd"], "cannot read odd/north/pos: Is a directory") for command in ("ls", "cat", "verify")),
        *(([command, "odd/north"], "cannot read odd/north/pos: Is a directory") for command in ("ls", "cat", "verify")),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    if "odd" in arguments[1]:
        (tmp_path / "odd" / "north" / "pos").mkdir(parents=True)
    assert run(["spool", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err
