"""On a host's folder, fsync covers what was stored before anything depending on it leaves or publish() returns.

A killed process proves nothing here, because the page cache outlives it, so the system calls are traced.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S

READINGS = 12

PROGRAM = """
import os, sys
port, folder, fsync = sys.argv[1:]
if fsync == "no":
    os.fsync = lambda descriptor: None  # the planted mistake
from umqtt_robust import Client
from umqtt_robust.flash import FlashStore

client = Client("traced", "mqtt://127.0.0.1:" + port, clean_session=False, store=FlashStore(folder + "/mqtt"))
came = []
client.on("readings", lambda topic, payload: came.append(payload))
client.subscribe("readings", qos=2)
while not (client.connected and client.subscribed):
    client.poll(100)
for number in range(%d):
    payload = b"reading-%%03d;" %% number + b"x" * (number %% 3 * 100)
    client.publish("readings", payload, qos=1 + number %% 2)
    os.write(1, b"returned-%%03d;" %% number)
    client.poll(1)
while client.pending or len(came) < %d:
    client.poll(100)
"""


@pytest.fixture
def broker() -> Iterator[int]:
    with paired_broker() as port:
        yield port


def trace(folder: Path, broker: int, fsync: str) -> list[str]:
    """Return the system calls of the program, in order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed (Linux: apt install strace)")
    calls = folder / "calls"
    program = folder / "program.py"
    program.write_text(PROGRAM % (READINGS, READINGS))
    # Long strings: messages that waited for a slow broker leave in one call, as much as a send buffer holds.
    command = [strace, "-o", str(calls), "-s", "2000", "-e", "trace=openat,mkdir,write,fsync,sendto,close"]
    done = subprocess.run(
        [*command, sys.executable, str(program), str(broker), str(folder), fsync],
        capture_output=True,
        timeout=WAIT_LIMIT_S,
    )
    if b"ptrace" in done.stderr or b"PTRACE" in done.stderr:
        pytest.skip("this machine does not let strace trace")
    assert done.returncode == 0, done.stderr.decode()
    return calls.read_text().splitlines()


def faults(calls: list[str], folder: Path) -> list[str]:
    """Return where data left or publish() returned while the store's writes were not yet covered by fsync."""
    store = str(folder / "mqtt")
    open_files: dict[str, str] = {}
    unsynced: set[str] = set()
    known: set[str] = set()
    on_disk: set[str] = set()
    pending: dict[str, set[str]] = {}
    found = []
    for call in calls:
        match = re.match(r'(\w+)\((?:AT_FDCWD, )?(?:"([^"]*)"|(\d+))(.*)\) += (-?\d+)', call)
        if not match:
            continue
        name, path, descriptor, rest, result = match.groups()
        if result.startswith("-"):
            continue
        if name == "openat" and path.startswith(str(folder)):
            open_files[result] = path
            if "O_CREAT" in rest and path not in known:
                unsynced.add(str(Path(path).parent))
            if "O_TRUNC" in rest:
                unsynced.add(path)
            known.add(path)
        elif name == "mkdir" and path.startswith(store):
            unsynced.add(str(Path(path).parent))
        elif name == "close":
            open_files.pop(descriptor, None)
        elif name == "fsync" and descriptor in open_files:
            path = open_files[descriptor]
            unsynced.discard(path)
            on_disk |= pending.pop(path, set())
        elif name == "write" and descriptor in open_files:
            pending.setdefault(open_files[descriptor], set()).update(re.findall(r"reading-\d+", rest))
            unsynced.add(open_files[descriptor])
        elif name == "sendto" or (name == "write" and "returned-" in rest):
            about = {number.replace("returned", "reading") for number in re.findall(r"(?:reading|returned)-\d+", rest)}
            if unsynced:
                found.append(f"{call[:80]} while {sorted(unsynced)} is not on the disk")
            if about - on_disk:
                found.append(f"{call[:80]} before the record of {sorted(about - on_disk)} is on the disk")
    return found


def test_publish_returns_and_bytes_leave_only_after_the_fsync_that_covers_them(broker: int, tmp_path: Path):
    """Planted: a store that does not call fsync, in the next test."""
    calls = trace(tmp_path, broker, "yes")
    assert faults(calls, tmp_path) == []
    text = "\n".join(calls)
    for number in range(READINGS):
        assert re.search(rf"sendto\(.*reading-{number:03}", text), f"reading {number} was not seen leaving"
        assert f"returned-{number:03}" in text


def test_the_trace_shows_a_store_that_does_not_call_fsync(broker: int, tmp_path: Path):
    """Planted: a trace without the calls that send."""
    found = faults(trace(tmp_path, broker, "no"), tmp_path)
    assert len(found) >= READINGS
