"""Mistakes planted in the collector's and the pipeline's process, to show that the counts catch them.

Each name says what goes wrong; its value is the program text that causes it. `command` runs a process with one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_ingest.gold import database
from spark_ingest.gold import update as gold
from spark_ingest.pipeline.decode import foreign, messages, record
from spark_ingest.pipeline.decode.births import BirthFiles
from spark_ingest.pipeline.deduplicate import progress, silver
from spark_ingest.pipeline.deduplicate.dedup import Seen
from spark_ingest.pipeline.deduplicate.progress import Progress
from spark_ingest.pipeline.write import batch, tasks
from spark_ingest.tables.delta import Delta

# Collector

# A group is written only when the next one comes, but acknowledged at once.
ACKNOWLEDGES_EARLY = """
append, pending = Spool.append, []
def late(self, data, count, received_ms, level):
    pending.append((bytes(data), count, received_ms, level))
    if len(pending) > 1:
        append(self, *pending.pop(0))
Spool.append = late
"""

DOES_NOT_SYNC = """
prepare = Spool.__init__
def careless(self, *arguments, **options):
    prepare(self, *arguments, **{**options, "sync": lambda descriptor: None})
Spool.__init__ = careless
"""

# The broker then keeps nothing while the collector is away.
CLEAN_SESSION = """
make = connection.Connection.open
def forgetful(self, *arguments):
    self.clean_session = True
    make(self, *arguments)
connection.Connection.open = forgetful
"""

# Not a mistake of the collector: the clock of its machine is wrong.
SHIFTED_CLOCK = """
import time
from types import SimpleNamespace
collector.time = SimpleNamespace(**vars(time) | {{"time_ns": lambda: time.time_ns() + {seconds} * 10**9}})
"""

_COLLECTOR = """
import sys
from spark_ingest.collector import collector, connection
from spark_ingest.spool.writer import Spool
{mistake}
from spark_ingest.collector.command import main
sys.exit(main())
"""

# Pipeline

# Loads the set of the newest micro-batch, instead of the one before this.
READS_LATEST_PROGRESS = """
load = Progress.load
def latest(self, batch_id):
    return load(self, max((number for _, number in self._files()), default=batch_id))
Progress.load = latest
"""

APPENDS_WITHOUT_TRANSACTION = """
Delta.has = lambda self, application_id, batch_id: False
"""

# Forgets all earlier micro-batches.
DOES_NOT_DEDUPLICATE = """
take = Seen.take
def generous(self, readings):
    return take(Seen(), readings)
Seen.take = generous
"""

# Treats readings that fill a gap as duplicates.
FORGETS_LATE_READINGS = """
Seen._fill_gap = lambda self, boot, seq: False
"""

# Ignores the transaction and the message's position, which would show that it is already there.
QUARANTINES_AGAIN = """
commit_files, without_known = Delta.commit_files, Delta.without_known
def always(self, files, application_id, batch_id):
    if self.path.name == "quarantine":
        application_id += str(os.getpid())
    return commit_files(self, files, application_id, batch_id)
Delta.commit_files = always
Delta.without_known = lambda self, rows: rows if self.path.name == "quarantine" else without_known(self, rows)
"""

# Treats a known identity with another payload as a duplicate.
DROPS_CONFLICTS = """
again = silver.repeated
def trusting(*arguments):
    found = again(*arguments)
    return found._replace(conflicts=found.conflicts.slice(0, 0))
silver.repeated = trusting
"""

# Uses the saved state, without what the windows have counted since.
GOLD_TAKES_SAVED_STATE = """
loaded = gold.Gold._loaded
def nothing_more(self, db):
    at = loaded(self, db)
    counted = gold.Counted.of(self._tables["windows"].delta)
    return dict(counted.after) if counted and at["silver"] >= 0 else at
gold.Gold._loaded = nothing_more
"""

# Takes its files for whole without a look at their checksum.
IGNORES_DAMAGE = """
def unchecked(path):
    return memoryview(path.read_bytes().partition(b"\\n")[2])
progress.read_checked = database.read_checked = unchecked
"""

# Identifies readings that their device does not number by their row in the micro-batch, not by their place.
NUMBERS_ROWS = """
foreign.places = lambda messages: foreign.np.arange(messages.num_rows)
"""

# A node's data cannot be read once the process has ended.
FORGETS_BIRTHS = """
BirthFiles.save = lambda self, batch_id, births: None
"""

LEAVES_LARGE_OUT = """
_pieces = tasks._pieces
def small_only(batches):
    for messages in _pieces(batches):
        small = [len(payload) < 1_000_000 for payload in messages["payload"].to_pylist()]
        yield messages.filter(pa.array(small))
tasks._pieces = small_only
"""

CUTS_DENSE = """
metric_maps = record.metric_maps
def cut(offsets, names, values):
    sizes = record.np.minimum(record.np.diff(offsets), 1000)
    kept = [at for start, size in zip(offsets.tolist(), sizes.tolist()) for at in range(start, start + size)]
    ends = record.np.concatenate([[0], record.np.cumsum(sizes)]).astype("int32")
    return metric_maps(ends, names.take(pa.array(kept, pa.int64())), [values[at] for at in kept])
record.metric_maps = cut
"""

# Takes the collector's clock at its word.
BELIEVES_CLOCK = """
gold._now_us = lambda: 1 << 62
"""

# Makes objects of all payloads of a micro-batch at once.
DECODES_AT_ONCE = """
messages._PIECE_BYTES = 1 << 40
"""

_PIPELINE = """
import os, signal, sys
import pyarrow as pa
from spark_ingest.gold import database
from spark_ingest.gold import update as gold
from spark_ingest.pipeline.decode import foreign, messages, record
from spark_ingest.pipeline.deduplicate import progress, silver
from spark_ingest.pipeline.write import batch, tasks
from spark_ingest.pipeline.decode.births import BirthFiles
from spark_ingest.pipeline.deduplicate.dedup import Seen
from spark_ingest.pipeline.deduplicate.progress import Progress
from spark_ingest.tables.delta import Delta
{mistake}
os.environ |= {workers!r}
sys.argv += ["--conf", "spark.python.daemon.module=proof.mistaken_workers"]
wanted, left = {die_at!r}
if wanted == "gold state saved":
    # A pipeline on older tables saves it after ten minutes only.
    gold._SAVE_EVERY_S = 0.0
def on_stage(stage):
    global left
    if stage == wanted:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
from spark_ingest.pipeline.run.command import main
sys.exit(main(on_stage=on_stage))
"""

_MODULES = {
    each.__name__.rpartition(".")[2]: each
    for each in (batch, database, foreign, messages, progress, record, silver, tasks)
} | {"gold": gold}
_CLASSES = {"BirthFiles": BirthFiles, "Seen": Seen, "Progress": Progress, "Delta": Delta}
_OF_MODULES = (batch.BatchWriter, gold.Gold)
_PROGRAMS = {"collector": _COLLECTOR, "pipeline": _PIPELINE}


def command(part: str, mistake: str, die_at: tuple[str, int] | None = None) -> list[str]:
    """Return the command of a part, with a mistake ("" for none).

    die_at: the stage at whose N-th occurrence the process kills itself, or None.
    """
    if mistake or die_at:
        workers = {"PLANTED_MISTAKE": mistake, "PYTHONPATH": os.pathsep.join(sys.path)}
        program = _PROGRAMS[part].format(mistake=mistake, die_at=die_at or ("", 0), workers=workers)
        return [sys.executable, "-c", program]
    return [sys.executable, "-m", f"spark_ingest.{part}"]


def plant(mistake: str) -> None:
    """Plant a mistake of the pipeline in this process."""
    exec(mistake, {"os": os, "pa": pa, **_MODULES, **_CLASSES})


@contextmanager
def planted(mistake: str) -> Iterator[None]:
    """Plant a mistake of the pipeline in this process within this context."""
    changed = {each: dict(vars(each)) for each in (*_MODULES.values(), *_CLASSES.values(), *_OF_MODULES)}
    plant(mistake)
    try:
        yield
    finally:
        for each, attributes in changed.items():
            for name, value in attributes.items():
                if vars(each).get(name) is not value:
                    setattr(each, name, value)
