"""Real brokers and both interpreters for the suite in client_suite.py."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, device_search_path, micropython_command

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
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if found is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    user = f"user {getpass.getuser()}"  # started as root it would become one who may not read our files
    lines = (user, f"listener {port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true", "")
    config.write_text("\n".join(lines))
    with subprocess.Popen([found, "-c", str(config)], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "running" in line:
                    break
                assert "Error" not in line, line
            # It says when clients come and go: unread, it would wait for ever after some hundred of them.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield port
        finally:
            process.terminate()
            process.wait(PATIENCE)


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
