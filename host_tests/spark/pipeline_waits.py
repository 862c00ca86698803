"""A pipeline whose driver waits for a file each time it has reached a stage.

``python pipeline_waits.py STAGE FILE`` and the pipeline's own arguments.
"""

import sys
from pathlib import Path

from spark_helpers import eventually_in_spark

from spark_ingest.pipeline.run.command import main

_stage, _file = sys.argv[1], Path(sys.argv[2])


def wait_at(stage: str) -> None:
    if stage == _stage:
        eventually_in_spark(_file.exists, f"{_file} is there")


sys.exit(main(sys.argv[3:], on_stage=wait_at))
