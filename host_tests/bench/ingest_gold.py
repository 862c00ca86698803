"""What updates of gold write, remember and cost, when a share of the fleet sent something.

    ingest_gold.py DEVICES SHARE UPDATES BOOTS FOLDER

Every device has booted once a week, BOOTS times, and sent a reading in each of the last hour's windows. Then, UPDATES
times, 5 s apart, SHARE of the devices send a reading of three metrics. It runs as a separate process, because its
memory is measured. Prints one JSON object: `bytes` and `files` that an update writes, by table; `saved`, bytes of the
state that gold saves now and then; `cpu_s` per update; `memory`, bytes of the process.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.data_files import write_files
from spark_ingest.tables.delta import Delta
from spark_ingest.tables.schemas import PARTITIONED_BY, SCHEMAS, TIMESTAMP

_METRICS = ("temp_c", "rssi", "mem_free")
_BEGAN_US = 1_789_999_200_000_000  # a full hour
_UPDATE_US, _WINDOW_US, _WEEK_US = 5_000_000, 300_000_000, 7 * 86_400_000_000
_WINDOWS = 12


def main() -> None:
    devices, share, updates, boots = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    folder = Path(sys.argv[5])
    rng = np.random.default_rng(1)
    silver = Delta(folder / "silver", SCHEMAS["silver"], PARTITIONED_BY["silver"])
    gold = Gold(folder)
    everybody = np.arange(devices)
    for boot in range(boots):
        _append(silver, everybody, boot, 0, _BEGAN_US - (boots - 1 - boot) * _WEEK_US, rng)
    gold.update()
    for window in range(1, _WINDOWS):
        at = _BEGAN_US + window * _WINDOW_US
        _append(silver, everybody, boots - 1, window, at, rng)
        gold.update()
    gold.save()
    saved = sum(path.stat().st_size for path in (folder / "gold" / ".state").iterdir() if path.is_file())
    seq, before = np.full(devices, _WINDOWS), _files(folder / "gold")
    sizes, counts, cpu = Counter(), Counter(), []
    for _ in range(updates):
        at += _UPDATE_US
        speaking = np.sort(rng.choice(devices, max(1, round(share * devices)), replace=False))
        _append(silver, speaking, boots - 1, seq[speaking], at, rng)
        seq[speaking] += 1
        begun = time.process_time()
        gold.update()
        now = _files(folder / "gold")
        cpu.append(time.process_time() - begun)
        for path in now.keys() - before.keys():
            sizes[path.parts[0]] += now[path]
            counts[path.parts[0]] += 1
        before = now
    told = {
        "bytes": {name: round(size / updates) for name, size in sorted(sizes.items())},
        "files": {name: round(count / updates, 1) for name, count in sorted(counts.items())},
        "saved": saved,
        "cpu_s": round(statistics.median(cpu), 3),
        "memory": _resident_bytes(),
    }
    print(json.dumps(told), flush=True)


def _append(
    silver: Delta, devices: np.ndarray, boot: int, seq: np.ndarray | int, at: int, rng: np.random.Generator
) -> None:
    count = len(devices)
    received = at + np.arange(count) * 10
    stamps = pa.array(received).cast(TIMESTAMP)
    values = np.stack([rng.normal(20, 5, count), rng.integers(-90, -40, count), 2e5 - rng.integers(0, 4096, count)], 1)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(_METRICS))
    columns = {
        "device_id": pa.array([f"device-{device:06d}" for device in devices.tolist()]),
        "boot": pa.array([f"{boot}-{device:016x}" for device in devices.tolist()]),
        "seq": pa.array(np.broadcast_to(seq, count)),
        "ts": stamps,
        "up_ms": pa.array(np.full(count, 1000)),
        "event_ts": stamps,
        "clock_ok": pa.array(np.ones(count, dtype=bool)),
        "received_ts": stamps,
        "metrics": pa.MapArray.from_arrays(offsets, pa.array(_METRICS * count), pa.array(values.reshape(-1))),
        "payload_crc": pa.array(np.full(count, 150 << 32)),
        "collector": pa.array(["north"] * count),
        "received_date": stamps.cast(pa.date32()),
    }
    fields = SCHEMAS["silver"]
    whole = [columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type) for one in fields]
    files = write_files(silver.path, pa.table(whole, schema=fields), PARTITIONED_BY["silver"], silver.FILE_PREFIX)
    silver.commit_files(files, "bench", at // _UPDATE_US)


def _files(gold: Path) -> dict[Path, int]:
    return {path.relative_to(gold): path.stat().st_size for path in gold.rglob("*") if path.is_file()}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
