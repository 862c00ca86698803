"""A pipeline whose driver waits for a file once executors have written, and is killed (SIGKILL) the second time.

``python waits_then_dies.py FILE`` and the pipeline's own arguments.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spark_helpers import eventually_in_spark

from spark_ingest.pipeline.run.command import main

_file = Path(sys.argv[1])
_times = 0


def on_stage(stage: str) -> None:
    global _times
    if stage == "written":
        _times += 1
        if _times == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        eventually_in_spark(_file.exists, f"{_file} is there")


sys.exit(main(sys.argv[2:], on_stage=on_stage))
