"""What an update of gold takes at most, in a process of its own whose memory the kernel bounds.

    gold_memory.py FOLDER DEVICES METRICS HOURS LATE_DEVICES LATE_HOURS MOST_BYTES

Silver has a reading of each device in each five minutes of HOURS. Gold is counted from it. Then LATE_DEVICES further
devices deliver the last LATE_HOURS at once. Prints one JSON object: `windows`, `n` (readings in the windows), `wanted`
(the same, by counting), `first_s`, `late_s` and `cpu_s` (of both), `late_bytes` (written for the late devices), and
`peak`, the most memory that was resident, in bytes. Silver is made by other processes, which count for nothing here.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.data_files import write_files
from spark_ingest.tables.delta import Delta
from spark_ingest.tables.schemas import PARTITIONED_BY, SCHEMAS, TIMESTAMP

_BEGAN_US = 1_789_948_800_000_000  # midnight
_WINDOW_US, _HOUR_US = 300_000_000, 3_600_000_000
_ROWS = 100_000


def main() -> None:
    folder = Path(sys.argv[1])
    devices, metrics, hours, late_devices, late_hours, most = map(int, sys.argv[2:])
    end_us = _BEGAN_US + hours * _HOUR_US
    windows, late = 12 * hours, 12 * late_hours
    _elsewhere(_fill, folder, devices, metrics, windows)
    gold = Gold(folder)
    base = _resident()
    resource.setrlimit(resource.RLIMIT_DATA, (_kib("VmData") + most, resource.RLIM_INFINITY))
    begun, cpu = time.monotonic(), time.process_time()
    gold.update()
    first_s = time.monotonic() - begun
    before = set((folder / "gold").rglob("*.parquet"))
    _elsewhere(_return, folder, late_devices, metrics, late, end_us)
    begun = time.monotonic()
    gold.update()
    late_s, cpu = time.monotonic() - begun, time.process_time() - cpu
    written = sum(path.stat().st_size for path in (folder / "gold").rglob("*.parquet") if path not in before)
    peak, data = _kib("VmHWM"), _kib("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    counts = DeltaTable(str(folder / "gold" / "windows")).to_pyarrow_dataset().to_table(["n"])["n"]
    row = {"windows": len(counts), "n": pc.call_function("sum", [counts]).as_py()}
    wanted = (devices * windows + late_devices * late) * metrics
    told = {"first_s": round(first_s, 1), "late_s": round(late_s, 1), "cpu_s": round(cpu, 1), "late_bytes": written}
    print(json.dumps({**row, "wanted": wanted, **told, "base": base, "peak": peak, "data": data}), flush=True)


def _elsewhere(work: Callable[..., None], *given: object) -> None:
    child = multiprocessing.get_context("spawn").Process(target=work, args=given)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"silver was not made: exit code {child.exitcode}")


def _fill(folder: Path, devices: int, metrics: int, windows: int) -> None:
    for number, start in enumerate(range(0, windows, step := max(1, _ROWS // devices))):
        seq = np.arange(start, min(windows, start + step))
        at = np.repeat(_BEGAN_US + seq * _WINDOW_US + 1_000_000, devices)
        names = np.tile([f"device-{n:06d}" for n in range(devices)], len(seq))
        _append(folder, _rows(names, np.repeat(seq, devices), at, at, metrics), "made", number)


def _return(folder: Path, devices: int, metrics: int, windows: int, end_us: int) -> None:
    seq = np.arange(windows)
    names = np.repeat([f"late-{n:06d}" for n in range(devices)], windows)
    at = np.tile(end_us - (windows - seq) * _WINDOW_US + 1_000_000, devices)
    _append(folder, _rows(names, np.tile(seq, devices), at, np.full(len(at), end_us), metrics), "late", 0)


def _append(folder: Path, rows: pa.Table, writer: str, number: int) -> None:
    silver = Delta(folder / "silver", SCHEMAS["silver"], PARTITIONED_BY["silver"])
    files = write_files(silver.path, rows, PARTITIONED_BY["silver"])
    silver.commit_files(files, writer, number)


def _rows(names: np.ndarray, seq: np.ndarray, at: np.ndarray, received: np.ndarray, metrics: int) -> pa.Table:
    count = len(names)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * metrics)
    keys = pa.array([f"metric_{n}" for n in range(metrics)] * count)
    values = pa.array(np.random.default_rng(1).normal(20, 5, count * metrics))
    stamps = pa.array(received).cast(TIMESTAMP)
    columns = {
        "device_id": pa.array(names),
        "boot": pa.array(["1-x"] * count),
        "seq": pa.array(seq),
        "ts": pa.array(at).cast(TIMESTAMP),
        "up_ms": pa.array(seq * _WINDOW_US // 1000),
        "event_ts": pa.array(at).cast(TIMESTAMP),
        "clock_ok": pa.array(np.ones(count, dtype=bool)),
        "received_ts": stamps,
        "metrics": pa.MapArray.from_arrays(offsets, keys, values),
        "payload_crc": pa.array(np.full(count, 150 << 32)),
        "collector": pa.array(["north"] * count),
        "segment": pa.array(np.zeros(count, dtype=np.int64)),
        "position": pa.array(np.arange(count)),
        "received_date": stamps.cast(pa.date32()),
    }
    fields = SCHEMAS["silver"]
    whole = [columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type) for one in fields]
    return pa.table(whole, schema=fields)


def _resident() -> int:
    return _kib("VmRSS")


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
