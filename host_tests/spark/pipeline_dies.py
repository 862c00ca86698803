"""A pipeline whose driver is killed (SIGKILL) when a stage has been reached for the N-th time.

``python pipeline_dies.py STAGE N`` and the pipeline's own arguments.
"""

import os
import signal
import sys

from spark_ingest.pipeline.run.command import main

_stage, _left = sys.argv[1], int(sys.argv[2])


def kill_at(stage: str) -> None:
    global _left
    if stage == _stage:
        _left -= 1
        if not _left:
            os.kill(os.getpid(), signal.SIGKILL)


sys.exit(main(sys.argv[3:], on_stage=kill_at))
