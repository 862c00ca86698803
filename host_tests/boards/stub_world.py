"""Runs a program with a virtual board's stub modules, without the board: it takes milliseconds."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from umqtt_testkit.board import board_environment
from umqtt_testkit.interpreter import DEVICE_FILES, MicroPythonMissing, micropython_command
from umqtt_testkit.models import MODELS
from umqtt_testkit.waiting import WAIT_LIMIT_S

_START = f"""
import json, sys
sys.path[:] = [{str(DEVICE_FILES)!r}]
import board_boot
sys.path.append({str(DEVICE_FILES.parents[1])!r})
from umqtt_testkit.portable import Clock
_virtual = board_boot.load_stubs({str(DEVICE_FILES)!r}, None)
def world(**hooks):
    with _virtual._host.open("/hooks.json", "w") as file:
        json.dump(hooks, file)
def show(value):
    print(repr(value))
def fails(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except Exception as error:
        return (type(error).__name__,) + error.args
"""


def answers(program: str, board: str = "UNIX", **hooks: object) -> list[Any]:
    """Return what the program shows with `show(value)`, where the value is a Python literal.

    `fails(f, …)` returns what f raises, as (name, *arguments), or what it returns; `world(…)` sets other hooks from
    there on, so that one interpreter answers many questions. A stub module whose `time` is set to a Clock() uses that
    time.
    """
    try:
        command = micropython_command("1M")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory(prefix="umqtt-stubs-") as folder:
        (Path(folder) / "hooks.json").write_text(json.dumps(hooks))
        environment = {**os.environ, **board_environment(MODELS[board]), "UMQTT_BOARD_FOLDER": folder}
        done = subprocess.run(
            [*command, "-c", _START + program],
            capture_output=True,
            text=True,
            timeout=2 * WAIT_LIMIT_S,
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]
