"""The serial transport of the examples works over a pty pair with a relay to a real broker."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raw_terminal import open_raw_terminal
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def line() -> Iterator[Callable[[int], str]]:
    """Provide line(port), which returns the path of a terminal whose other end is connected to a broker."""
    descriptors: list[int] = []
    threads: list[threading.Thread] = []
    stopped, stop = socket.socketpair()

    def open_line(port: int) -> str:
        outer, inner, path = open_raw_terminal()
        descriptors.extend((outer, inner))
        threads.append(threading.Thread(target=relay, args=(outer, port)))
        threads[-1].start()
        return path

    def relay(outer: int, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as broker:
            while True:
                ready = select.select([outer, broker, stopped], [], [])[0]
                if stopped in ready:
                    return
                if outer in ready:
                    broker.sendall(os.read(outer, 4096))
                if broker in ready:
                    data = broker.recv(4096)
                    if not data:
                        return
                    while data:
                        data = data[os.write(outer, data) :]

    yield open_line
    stop.close()
    for thread in threads:
        thread.join(WAIT_LIMIT_S)
    stopped.close()
    for descriptor in descriptors:
        os.close(descriptor)


def test_messages_pass_over_a_serial_line(program, mosquitto, line) -> None:
    running = program("serial_line.py", tty=line(mosquitto()), examples=str(EXAMPLES), count=50)
    assert running.finish()[-1]["polls"] < 2000


@pytest.mark.parametrize("bundled", [False, True])
def test_a_board_without_sockets_imports_the_client(tmp_path: Path, bundled: bool):
    """Planted: the platform's module imports socket unconditionally."""
    folder = EXAMPLES.parent
    if bundled:
        folder = tmp_path
        Bundle(library_folder()).compile(tmp_path)
    program = f"""
import builtins, sys
there = __import__
def without_network(name, *others):
    if name in ("socket", "network"):
        raise ImportError("no module named '%s'" % name)
    return there(name, *others)
builtins.__import__ = without_network
sys.path[:] = [{str(folder)!r}]
from umqtt_robust import Client
client = Client(b"pump-7", "mqtt://uart", transports={{"mqtt": lambda host, port, path: None}})
print("made")
"""
    try:
        command = micropython_command()
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run([*command, "-c", program], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False)
    assert done.stdout == "made\n", done.stdout + done.stderr
