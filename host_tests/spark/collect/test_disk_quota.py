"""Laws of a full spool: nothing dropped, nothing acknowledged that is not stored, no busy loop, and it recovers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, Process, collector_process, publish_packet, record, status
from umqtt_testkit.waiting import eventually

from spark_ingest.collector.disk_quota import DiskQuota, QuotaReached, spool_bytes
from spark_ingest.spool.blocks import Position
from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import Spools
from spark_ingest.spool.writer import Spool

MESSAGES = [(TOPIC, record("pump", "1-a", seq, filler="x" * 300)) for seq in range(2000)]
WANTED = {payload for _, payload in MESSAGES}


class Reader:
    """Reads a spool as Spark does: first what is durable, then it lets finished segments be removed."""

    def __init__(self, root: Path, name: str = "north") -> None:
        self.view = Spools(root).view(name)
        self.payloads: list[bytes] = []
        self.place: Position | None = None

    def read(self) -> None:
        durable = self.view.durable()
        assert durable is not None
        self.payloads += [message.payload for message in messages(self.view, self.place, durable)]
        self.place = durable

    def remove(self) -> int:
        assert self.place is not None
        return self.view.remove_before(self.place, read_for_s=0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_at_its_limit_the_broker_keeps_the_messages_until_segments_are_removed(broker, publish, tmp_path):
    root, state = tmp_path / "spool", tmp_path / "status.json"
    limits = ["--max-spool-bytes", "256K", "--group-bytes", "8K", "--status", state]
    reader = Reader(root)
    with collector_process(broker, root, "north", *limits) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        eventually(lambda: status(state)["waiting"], "a full spool")
        assert "holds" in status(state)["waiting"] and status(state)["connected"] is False
        durable = reader.view.durable()
        full = status(state)
        assert 256 << 10 <= full["spool_bytes"] <= (256 << 10) + (32 << 10), "one group over the limit at most"
        assert (full["pauses"], full["lost_links"]) == (1, 0), "waiting is not a lost link"
        eventually(
            lambda: reader.view.durable()[1] > durable[1] or reader.view.durable()[2] == 0, "a segment of its own"
        )
        pauses = 0

        def full_or_done() -> bool:
            return status(state)["pauses"] > pauses or status(state)["messages"] >= len(WANTED)

        while set(reader.payloads) != WANTED:
            # Remove segments only when the spool is full again, or everything is there.
            eventually(full_or_done, "more messages")
            pauses = status(state)["pauses"]
            reader.read()
            reader.remove()
        # The last message may have filled the spool once more.
        eventually(lambda: not status(state)["waiting"], "room again")
        code, _, err = one.terminate()
    assert code == 0
    assert set(reader.payloads) == WANTED
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events.count("waiting") == events.count("resumed") >= 3, "each wait was told, and so was its end"


def test_a_reader_that_has_read_everything_can_remove_it_although_nothing_more_comes(mosquitto, publish, tmp_path):
    """Only finished segments are removed, and Spark's commit() for a batch comes when it builds the next one."""
    root, state = tmp_path / "spool", tmp_path / "status.json"
    reader = Reader(root)
    limits = ["--max-spool-bytes", "64K", "--group-bytes", "4K", "--status", state]
    with collector_process(mosquitto, root, "north", *limits) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES[:200])
        eventually(lambda: status(state)["waiting"], "a full spool")
        reader.read()
        committed = reader.place
        # The next micro-batch, an empty one, comes only if the durable position moves by itself.
        eventually(lambda: reader.view.durable() != committed, "the durable position moves while nothing is received")
        assert reader.view.remove_before(committed, read_for_s=0) > 0
        eventually(lambda: not status(state)["waiting"], "room again")
        assert one.terminate()[0] == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing(small_disk, broker, publish, tmp_path, request):
    kept_free = "0" if request.node.callspec.params["broker"] == "mosquitto" else "500K"
    state, ballast = tmp_path / "status.json", small_disk / "ballast"
    ballast.write_bytes(bytes(1400 << 10))
    more = ["--status", state, "--min-free-bytes", kept_free, "--segment-bytes", "128K", "--group-bytes", "32K"]
    reader = Reader(small_disk / "spool")
    with collector_process(broker, small_disk / "spool", "north", *more) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        eventually(lambda: status(state)["waiting"], "a full disk")
        reader.read()
        assert set(reader.payloads) <= WANTED
        ballast.unlink()
        eventually(lambda: not status(state)["waiting"], "room again")
        reader.remove()

        def all_read() -> bool:
            reader.read()
            reader.remove()
            return set(reader.payloads) == WANTED

        eventually(all_read, "everything that was published")
        assert one.terminate()[0] == 0


@pytest.mark.tier(3)
@pytest.mark.parametrize("full", ["limit", "disk"])
def test_a_collector_without_room_waits_and_spins_not(small_disk, mosquitto, publish, tmp_path, full):
    """It needs a quiet machine: a busy loop beside much other work would go unnoticed."""
    state = tmp_path / "status.json"
    (small_disk / "ballast").write_bytes(bytes(1400 << 10))
    root, more = tmp_path / "spool", ["--max-spool-bytes", "256K", "--group-bytes", "8K"]
    if full == "disk":
        root = small_disk / "spool"
        more = ["--min-free-bytes", "500K", "--segment-bytes", "128K", "--group-bytes", "32K"]
    with collector_process(mosquitto, root, "north", "--status", state, *more) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        eventually(lambda: status(state)["waiting"], "no room")
        began, ticks = time.monotonic(), cpu_seconds(one.pid)
        eventually(lambda: time.monotonic() - began > 1.5, "some time, of which one that spins would take all")
        assert cpu_seconds(one.pid) - ticks < 0.25 * (time.monotonic() - began), "it spins"
        assert one.terminate()[0] == 0


@pytest.mark.tier(3)  # a control
def test_a_collector_that_takes_a_failed_append_for_a_good_one_is_caught(small_disk, mosquitto, publish, tmp_path):
    root, state = small_disk / "spool", tmp_path / "status.json"
    (small_disk / "ballast").write_bytes(bytes(1400 << 10))
    planted = Path(__file__).with_name("planted.py")
    command = [sys.executable, planted, "swallow", "--broker", f"mqtt://127.0.0.1:{mosquitto}", "--spool", root]
    command += ["--name", "north", "--status", state, "--min-free-bytes", "0"]
    with Process(command) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        eventually(lambda: status(state)["messages"] == len(MESSAGES), "everything is acknowledged")
    reader = Reader(root)
    reader.read()
    assert WANTED - set(reader.payloads)


def test_a_collector_that_is_started_on_a_full_disk_waits_for_room(small_disk, mosquitto, publish, tmp_path):
    root, state = small_disk / "spool", tmp_path / "status.json"
    with Spool(root / "north") as spool:
        spool.append(publish_packet(TOPIC, b"before"), 1, RECEIVED_MS)
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(bytes(4096))
    with collector_process(mosquitto, root, "north", "--status", state, "--min-free-bytes", "0") as one:
        # Not even the subscriptions can be written down.
        eventually(lambda: status(state).get("waiting"), "a full disk")
        publish(MESSAGES[:50])
        (small_disk / "ballast").unlink()
        reader = Reader(root)

        def all_read() -> bool:
            reader.read()
            return set(reader.payloads) == {b"before"} | {payload for _, payload in MESSAGES[:50]}

        eventually(all_read, "what was published on a full disk")
        assert one.terminate()[0] == 0


def test_a_spool_folder_that_is_taken_away_stops_acknowledgements(mosquitto, publish, tmp_path):
    """Its open file would take messages that nobody can read."""
    root, state = tmp_path / "spool", tmp_path / "status.json"
    with collector_process(mosquitto, root, "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES[:10])
        eventually(lambda: status(state)["messages"] == 10, "the first")
        eventually(
            lambda: status(state)["updated_ms"] - status(state)["last_message_ms"] > 1200, "the next look is due"
        )
        (root / "north").rename(tmp_path / "away")
        publish(MESSAGES[10:20])
        eventually(lambda: status(state)["waiting"], "found out")
        assert "cannot be read" in status(state)["waiting"]
        taken = status(state)["messages"]
        publish(MESSAGES[20:30])
        (tmp_path / "away").rename(root / "north")
        eventually(lambda: not status(state)["waiting"], "put back")
        eventually(lambda: status(state)["messages"] >= 30, "the rest")
        assert taken <= 20
        assert one.terminate()[0] == 0
    reader = Reader(root)
    reader.read()
    assert set(reader.payloads) == {payload for _, payload in MESSAGES[:30]}


def test_room_counts_what_is_there_and_asks_for_a_tenth_more_before_it_goes_on(tmp_path):
    with Spool(tmp_path / "north", segment_bytes=1000) as spool:
        quota = DiskQuota(tmp_path / "north", max_bytes=10_000, min_free_bytes=0)
        with pytest.raises(QuotaReached, match="may hold 10000"):
            while True:
                spool.append(bytes(400), 1, RECEIVED_MS)
                quota.note(424)
        assert 10_000 <= spool_bytes(tmp_path / "north") < 10_424
        assert quota.lacks(margin=True)
        view = Spools(tmp_path).view("north")
        first = view.segments()[0]
        assert view.remove_before(Position(spool.durable.spool, first + 1, 0), read_for_s=0) == 1
        assert quota.lacks() is None and quota.used < 10_000
        assert quota.lacks(margin=True) is not None or quota.used < 9_000
    free = os.statvfs(tmp_path)
    assert "free" in (DiskQuota(tmp_path / "north", max_bytes=0, min_free_bytes=1 << 60).lacks() or "")
    assert DiskQuota(tmp_path / "north", max_bytes=0, min_free_bytes=free.f_bavail).lacks() is None
    assert DiskQuota(tmp_path / "nowhere", max_bytes=0, min_free_bytes=0).probe()
