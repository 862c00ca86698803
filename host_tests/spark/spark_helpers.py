"""Shared by the ingestion tests: spools written by hand, and processes with a limit on every wait."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S, NotInTime, eventually

from spark_ingest.pipeline.write.data_files import write_files
from spark_ingest.spool.writer import Spool
from spark_ingest.tables.delta import Delta

TOPIC = "fleet/pump/telemetry"
RECEIVED_MS = 1_795_000_000_000
# A start of Spark is a dozen processes one after the other: Java, and the Python processes that Java starts.
_SPARK_STEPS = 5
SPARK_LIMIT_S = _SPARK_STEPS * WAIT_LIMIT_S


def publish_packet(topic: str, payload: bytes, packet_id: int = 1, *, qos: int = 1, dup: bool = False) -> bytes:
    """Return a PUBLISH as a broker sends it."""
    return encoder.publish(topic.encode(), payload, qos, packet_id, dup=dup)


_REFUSED_5 = {4: 0x86, 5: 0x87}


def in_version_5(stream: bytes) -> bytes:
    """Convert what a broker sends with MQTT 3.1.1 to MQTT 5; what is no packet stays unchanged."""
    packets, rest = encoder.split_packets(stream)
    converted = b""
    for first, body in packets:
        kind = first >> 4
        if kind == encoder.CONNACK:
            body = body[:1] + bytes((_REFUSED_5.get(body[1], body[1]), 0))
        elif kind in (encoder.SUBACK, encoder.UNSUBACK):
            body = body[:2] + b"\0" + (body[2:] or b"\0")
        elif kind == encoder.PUBLISH:
            at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 6 else 0)
            body = body[:at] + b"\0" + body[at:]
        converted += encoder.encode(first, body)
    return converted + rest


def record(device: str, boot: str, seq: int, /, **fields: object) -> bytes:
    """Return a telemetry record's payload; `fields` replace the defaults."""
    content = {
        "v": 1,
        "id": device,
        "boot": boot,
        "seq": seq,
        "ts": RECEIVED_MS - 5,
        "up": 1000 + seq,
        "m": {"t": 21.5},
    }
    return json.dumps(content | fields).encode()


def topic_of(payload: bytes) -> str:
    """Return the topic of the device that a record names; TOPIC for what is no record."""
    try:
        return f"fleet/{json.loads(payload)['id']}/telemetry".encode().decode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return TOPIC


def fill(folder: Path, groups: Sequence[Sequence[bytes]], **options: object) -> None:
    """Write `groups` of payloads to the spool in `folder`, a block each, as one run of a collector would."""
    with Spool(folder, **options) as spool:
        for index, payloads in enumerate(groups):
            packets = [publish_packet(topic_of(payload), payload, 1 + i) for i, payload in enumerate(payloads)]
            spool.append(b"".join(packets), len(packets), RECEIVED_MS + index)


def append_once(table: Delta, rows: pa.Table, application_id: str, batch_id: int, partition_by: str | None) -> bool:
    """Append rows to a table as a micro-batch does; return whether it appended them."""
    files = write_files(table.path, rows, partition_by)
    return table.commit_files(files, application_id, batch_id)


class Process:
    """A child process with a limit on every wait; it is killed at the end in any case.

    options: of subprocess.Popen, such as a file for stderr, which finish() returns otherwise.
    """

    def __init__(self, arguments: Iterable[object], **options: object) -> None:
        self.lines: list[str] = []
        self._rest = b""
        self._child = subprocess.Popen(
            [str(a) for a in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **{"stderr": subprocess.PIPE, **options},
        )
        self.pid = self._child.pid

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()

    def wait_for_line(self, wanted: str, timeout: float = WAIT_LIMIT_S) -> str:
        """Read standard output until a line that begins with `wanted`; return that line.

        timeout: seconds until something is printed.
        """
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        while not (found := [line for line in self.lines if line.startswith(wanted)]):
            if not select.select([fd], [], [], timeout)[0]:
                raise AssertionError(f"no line {wanted!r} within {timeout} s, only {self.lines}")
            data = os.read(fd, 65536)
            if not data:
                raise AssertionError(f"ended before {wanted!r}: {self.lines}, {self._child.communicate()[1].decode()}")
            *whole, self._rest = (self._rest + data).split(b"\n")
            self.lines += [line.decode() for line in whole]
        return found[0]

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def finish(self, timeout: float = WAIT_LIMIT_S) -> tuple[int, str, str]:
        """Wait for the end; return (return code, rest of standard output, standard error).

        A negative code is the signal that killed it.
        """
        out, err = self._child.communicate(timeout=timeout)
        return self._child.returncode, out.decode(), (err or b"").decode()

    def terminate(self, timeout: float = WAIT_LIMIT_S) -> tuple[int, str, str]:
        """Send SIGTERM to every process of its group, as a service manager or a terminal does; then finish()."""
        os.killpg(self.pid, signal.SIGTERM)
        return self.finish(timeout)


def collector_process(port: int, spool: Path, name: str = "north", *more: object) -> Process:
    """Start ``python -m spark_ingest.collector`` with quick reconnects."""
    broker = f"mqtt://127.0.0.1:{port}"
    fixed = ["--broker", broker, "--spool", spool, "--name", name, "--longest-delay", "0.2"]
    return Process([sys.executable, "-m", "spark_ingest.collector", *fixed, *more])


def eventually_in_spark(condition: Callable[[], object], what: str | Callable[[], object] = "") -> None:
    """Like eventually(), with SPARK_LIMIT_S."""
    for _ in range(_SPARK_STEPS - 1):
        with suppress(NotInTime):
            eventually(condition, what)
            return
    eventually(condition, what)


def status(path: Path) -> dict:
    """Return a status file's content; empty if there is none."""
    return json.loads(path.read_bytes()) if path.exists() else {}


def children(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [p for child in map(int, found) for p in (child, *children(child))]


def alive(pid: int) -> bool:
    """Return whether a process runs; it may end during the check."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()  # macOS has none
