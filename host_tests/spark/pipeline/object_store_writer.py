"""Writes the micro-batches of test_batch's workload to tables on an object store, and resumes after a kill.

``python object_store_writer.py URL CHECKPOINT SEED``, with the tests' PYTHONPATH. Prints each stage.
"""

import sys
from pathlib import Path

from test_batch import QUERY, workload

from spark_ingest.location import located
from spark_ingest.pipeline.run.claim import claim
from spark_ingest.pipeline.write.batch import BatchWriter

tables, checkpoint, seed = located(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
(checkpoint / "umqtt").mkdir(exist_ok=True)
committed = checkpoint / "metadata"
number = int(committed.read_text()) if committed.exists() else 0
writer = BatchWriter(
    tables,
    checkpoint / "umqtt",
    on_open=lambda opened: claim(opened, tables, checkpoint),
    on_stage=lambda stage: print(number, stage, flush=True),
)
committed.write_text(str(number))
for batch in workload(seed)[0][number:]:
    writer.write(batch, number, QUERY)
    number += 1
    committed.write_text(str(number))
