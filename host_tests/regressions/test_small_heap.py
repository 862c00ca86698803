"""A 100 KB message in 64 KB of heap is streamed to a handler, or skipped and acknowledged, without MemoryError."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_kit.mpy_cross import compile_file
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library as on a board: its bundle, as .mpy files, so that the compiler uses none of the heap."""
    top = tmp_path_factory.mktemp("compiled")
    Bundle(library_folder()).compile(top)
    compile_file(HERE / "large_message.py", top / "large_message.mpy")
    return top


def test_100_kb_message_into_a_64_kb_heap(compiled: Path):
    try:
        command = micropython_command("64K")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    # It runs in that folder, because MicroPython keeps the path of every module in the heap.
    done = subprocess.run(
        [*command, "-c", "import large_message"],
        cwd=compiled, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("whole"), done.stdout + done.stderr
    assert int(done.stdout.split()[1]) <= 65536
