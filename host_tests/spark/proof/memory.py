"""How much memory the pipeline's Python processes take for micro-batches of large, many and dense messages.

``python -m proof.memory pipeline KIND MIB FOLDER`` fills a spool in an empty folder, runs the pipeline over it and
prints the peak of its Python processes together, in bytes; memory that they share counts once. ``peak`` does so in a
new process; ``writer_peak`` (VmHWM) leaves Spark out, for a quick look.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from spark_helpers import SPARK_LIMIT_S, children, publish_packet

from spark_ingest.pipeline.decode import messages
from spark_ingest.pipeline.write.batch import MESSAGE_COLUMNS, BatchWriter
from spark_ingest.spool.writer import Spool
from spark_ingest.tables.schemas import BRONZE_SCHEMA

_TOPIC = "fleet/d/telemetry"
_GROUP_BYTES = 1 << 20
_LARGEST = 64
_SAMPLED_EVERY_S = 0.02
_DOCS = Path(__file__).parents[3] / "docs" / "ingest.md"
_ROW = re.compile(r"^\| (\d+)M[^|]* \| ([\d.]+) GB \|", re.MULTILINE)


def _dense(seq: int, metrics: int) -> bytes:
    many = ",".join(f'"{number:x}":{number % 10}' for number in range(metrics))
    return b'{"v":1,"id":"d","boot":"1-a","seq":%d,"m":{%s}}' % (seq, many.encode())


def _long(seq: int) -> bytes:
    return json.dumps({"v": 1, "id": "d", "boot": "1-a", "seq": seq, "m": {}, "text": "x" * 15_999_900}).encode()


def _short(seq: int) -> bytes:
    metrics = {"temperature": 21.5, "humidity": 40 + seq % 9, "pressure": 1013.2}
    content = {"v": 1, "id": "d", "boot": "1-a", "seq": seq, "ts": 1_700_000_000_000 + seq, "up": seq, "m": metrics}
    return json.dumps(content, separators=(",", ":")).encode()


DENSE, DENSEST = "8,500 records with 1,000 metrics", "4 records with 1.5 million metrics"
# Stated beside the table: gold has a window of each metric.
_DENSEST_GB = 2.5
KINDS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "4 messages of 16 MB": (4, _long),
    "500,000 messages of 130 bytes": (500_000, _short),
    DENSE: (8_500, lambda seq: _dense(seq, 1_000)),
    DENSEST: (4, lambda seq: _dense(seq, 1_500_000)),
}
"""What is waiting in the spool, more than any micro-batch takes: how many messages, and the payload by its number."""


def documented() -> dict[int, float]:
    """Return the GB that docs/ingest.md states for Python, by --max-bytes in MiB."""
    return {int(size): float(most) for size, most in _ROW.findall(_DOCS.read_text())}


def most_bytes(kind: str, megabytes: int) -> float:
    """Return the stated bytes for micro-batches of a kind."""
    return 1e9 * (_DENSEST_GB if kind == DENSEST else documented()[megabytes])


def peak(kind: str, megabytes: int, folder: Path) -> int:
    """Return the peak, in bytes, of a pipeline that reads a spool of `kind` in micro-batches of this many MiB."""
    return _run("pipeline", kind, megabytes, folder)


def writer_peak(kind: str, megabytes: int, folder: Path, mistake: str = "") -> int:
    """Return the peak, in bytes, of a process that writes one such micro-batch, without Spark."""
    return _run("writer", kind, megabytes, folder, mistake)


def exceeded(
    folder: Path, sizes: Sequence[int], kinds: Sequence[str], say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Run the pipeline with micro-batches of these sizes and kinds; return descriptions of too high peaks."""
    folder.mkdir()
    found = []
    for number, (megabytes, kind) in enumerate(product(sizes, kinds)):
        got, most = peak(kind, megabytes, folder / str(number)), most_bytes(kind, megabytes)
        shutil.rmtree(folder / str(number))
        line = f"--max-bytes {megabytes}M, {kind}: {got / 1e9:.2f} GB of {most / 1e9:.2f}"
        say(f"  {line}")
        if got > most:
            found.append(f"memory: {line}")
    return found


def control(mistake: str, folder: Path, _seed: object) -> list[str]:
    """Write a micro-batch of dense records; return the descriptions of a too high peak."""
    got, most = writer_peak(DENSE, _LARGEST, folder / "made", mistake), most_bytes(DENSE, _LARGEST)
    return [f"memory: {got / 1e9:.2f} GB of {most / 1e9:.2f}"] if got > most else []


def _run(what: str, kind: str, megabytes: int, folder: Path, mistake: str = "") -> int:
    folder.mkdir()
    command = [sys.executable, "-m", "proof.memory", what, kind, str(megabytes), str(folder), mistake]
    place = Path(__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SPARK_LIMIT_S, cwd=place, check=False)
    assert ended.returncode == 0, ended.stderr[-1000:]
    return int(ended.stdout.split()[-1])


def _groups(kind: str, most: float = float("inf")) -> Iterator[list[bytes]]:
    """Yield payloads in groups like a collector's, of `most` bytes together or one group."""
    count, make = KINDS[kind]
    group: list[bytes] = []
    size = total = 0
    for seq in range(count):
        payload = make(seq)
        if total and total + len(payload) > most:
            break
        group.append(payload)
        size, total = size + len(payload), total + len(payload)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _messages(payloads: pa.ChunkedArray) -> pa.Table:
    """Return payloads as a micro-batch."""
    values: dict[str, Any] = {"topic": _TOPIC, "collector": "north", "spool": "0" * 32, "retain": False, "dup": False}
    columns = {}
    for field in (BRONZE_SCHEMA.field(name) for name in MESSAGE_COLUMNS if name != "payload"):
        columns[field.name] = pa.repeat(pa.scalar(values.get(field.name, 1), field.type), len(payloads))
    places = pa.array(range(len(payloads)), BRONZE_SCHEMA.field("position").type)
    return pa.table(columns | {"payload": payloads, "position": places})


def _peak_of_this_process() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


class _Sampled:
    """Samples the memory of this process and of the Python processes below it."""

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            self.peak = max(self.peak, sum(map(_bytes_of, [os.getpid(), *children(os.getpid())])))


def _bytes_of(process: int) -> int:
    """Return the memory of a Python process, its share of what processes share; 0 if it has ended or is another."""
    try:
        if "python" not in Path(f"/proc/{process}/comm").read_text():
            return 0
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))


def _main(what: str, kind: str, megabytes: int, folder: Path, mistake: str = "") -> None:
    if what == "fill":
        with Spool(folder / "spool" / "north", sync=lambda _descriptor: None) as spool:
            for group in _groups(kind):
                packets = [publish_packet(_TOPIC, payload, 1 + number) for number, payload in enumerate(group)]
                spool.append(b"".join(packets), len(packets), time.time_ns() // 1_000_000)
    elif what == "pipeline":
        # In another process, since this one's memory is measured.
        subprocess.run([sys.executable, "-m", "proof.memory", "fill", kind, str(megabytes), str(folder)], check=True)
        from spark_ingest.pipeline.run import command

        options = ["--spool", "spool", "--tables", "tables", "--checkpoint", "checkpoint"]
        options = [word if word.startswith("--") else str(folder / word) for word in options]
        small = ["--cores", "1", "--conf", "spark.driver.memory=480m"] if megabytes <= 4 else []
        with _Sampled() as sampled:
            assert command.main([*options, "--once", "--max-bytes", f"{megabytes}M", *small]) == 0
        print(sampled.peak)
        return
    else:
        exec(mistake, {"messages": messages})
        payloads = pa.chunked_array([pa.array(group, pa.binary()) for group in _groups(kind, megabytes << 20)])
        BatchWriter(folder / "tables", folder / "state").write(_messages(payloads), 0, "query")
    print(_peak_of_this_process())


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
