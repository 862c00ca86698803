"""What the deduplication remembers of 10,000 devices after a year: its size on disk and in memory, and its load.

    ingest_state.py DEVICES FOLDER

Every device boots once a week and has 100 open gaps. It runs as a separate process, because its memory is measured.
Prints one JSON object: disk, memory (bytes), load_s, boots, open_gaps, archived.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_ingest.pipeline.dedup import STATE_SCHEMA, Limits, Seen
from spark_ingest.pipeline.progress import Progress

_WEEKS, _GAPS = 52, 100
_WEEK_US = 7 * 86_400_000_000
_READINGS = 60_480  # one each ten seconds


def main() -> None:
    devices, folder = int(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3:] == ["load"]:
        before = _resident_bytes()
        begun = time.perf_counter()
        seen = Progress(folder).load(_WEEKS - 1)
        load_s = time.perf_counter() - begun
        assert seen is not None
        told = {
            "disk": sum(path.stat().st_size for path in folder.iterdir()),
            "memory": _resident_bytes() - before,
            "load_s": load_s,
            "boots": len(seen),
            "open_gaps": seen.open_gaps,
            "archived": len(seen.archived),
        }
        print(json.dumps(told), flush=True)
        return
    seen = Seen(lambda _boots: pa.table({}))
    rng = np.random.default_rng(1)
    for week in range(_WEEKS):
        seen.apply(_week(week, devices, rng))
        # The pipeline does this each time it writes the whole set; here it is written only once, to save time.
        seen.shrink(Limits())
    Progress(folder).save(_WEEKS - 1, seen)


def _week(week: int, devices: int, rng: np.random.Generator) -> pa.Table:
    firsts = np.sort(rng.integers(0, _READINGS // 4, (devices, _GAPS)) * 4, axis=1)
    firsts += np.arange(_GAPS) * 4  # no two touch
    ends = np.stack([firsts, firsts + 1], axis=2).reshape(-1)
    return pa.table(
        [
            pa.array([f"device-{device:06d}" for device in range(devices)]),
            pa.array([f"{week}-{device:016x}" for device in range(devices)]),
            pa.array(np.full(devices, _READINGS * 2)),
            pa.ListArray.from_arrays(pa.array(np.arange(devices + 1, dtype=np.int32) * 2 * _GAPS), pa.array(ends)),
            pa.array(np.full(devices, (week + 1) * _WEEK_US)),
        ],
        schema=STATE_SCHEMA,
    )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
