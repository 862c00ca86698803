"""Real brokers and both interpreters for the suite in client_suite.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, device_search_path, micropython_command
from umqtt_testkit.mosquitto import Mosquitto

HERE = Path(__file__).resolve().parent
LAWS = HERE.parent / "laws"
sys.path[:0] = [str(HERE), str(LAWS)]

# Seconds for a broker to end.
PATIENCE = 30


@pytest.fixture(scope="session")
def paired_broker() -> Iterator[int]:
    """The port of `python -m umqtt_broker`."""
    command = [sys.executable, "-m", "umqtt_broker", "-p", "0", "--store", ":memory:"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), line
            yield int(line.rpartition(":")[2])
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of mosquitto."""
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "allow_anonymous true") as broker:
        yield broker.port


@pytest.fixture(scope="session", params=["cpython", "micropython"])
def interpreter(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs a portable script which imports the library and the laws' helpers."""
    if request.param == "cpython":
        path = [str(LAWS), *device_search_path()]
        code = f"import sys, runpy; sys.path[:0] = {path!r}; sys.argv.pop(0); sys.path.insert(0, {str(HERE)!r}); "
        return [sys.executable, "-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')"]
    try:
        command = micropython_command("4M")
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    path = [str(HERE), str(LAWS), *device_search_path()]
    code = f"import sys; sys.path[:0] = {path!r}; import client_suite; client_suite.main(%s, %s)"
    return [*command, "-c", code]
