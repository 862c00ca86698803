"""The paired broker as a process of its own. It needs the extra `broker`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .waiting import WAIT_LIMIT_S


@contextmanager
def paired_broker(*arguments: str) -> Iterator[int]:
    """Run `python -m umqtt_broker`, without arguments in memory and on a free port; yield its port on 127.0.0.1."""
    command = [sys.executable, "-P", "-m", "umqtt_broker", *(arguments or ("-p", "0", "--store", ":memory:"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), line
            yield int(line.split()[2].rpartition(":")[2])
        finally:
            process.terminate()
            assert process.wait(WAIT_LIMIT_S) == 0
