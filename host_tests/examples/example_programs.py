"""Starts the programs of the folder examples, with a test's constants instead of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
from umqtt_testkit.interpreter import device_search_path, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def with_constants(name: str, **constants: object) -> str:
    """Return the source of an example with these constants; each must be assigned in a line of its own."""
    source = (EXAMPLES / name).read_text()
    for constant, value in constants.items():
        source, count = re.subn(
            rf"^{constant} = .*$", lambda _, c=constant, v=value: f"{c} = {v!r}", source, flags=re.M
        )
        assert count == 1, f"{name} assigns {constant} {count} times"
    return source


def start(name: str, folder: Path, interpreter: str = "cpython", **constants: object) -> subprocess.Popen[str]:
    """Start an example in `folder`, under "cpython" or "micropython". Raises MicroPythonMissing."""
    program = folder / name
    program.write_text(with_constants(name, **constants))
    path = ":".join(device_search_path())
    command = [sys.executable, "-u"] if interpreter == "cpython" else micropython_command("1M")
    return subprocess.Popen(
        [*command, program],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={"PYTHONPATH": path, "MICROPYPATH": f"{path}:.frozen", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@contextmanager
def running(name: str, folder: Path, interpreter: str = "cpython", **constants: object) -> Iterator[None]:
    """Run an example that goes on until it is killed, without notice. Fails if it ended before."""
    with start(name, folder, interpreter, **constants) as process:
        try:
            yield
            ended = process.poll()
        finally:
            process.kill()
            printed = process.communicate()[0]
        assert ended is None, printed
        assert "Traceback" not in printed


def finished(name: str, folder: Path, interpreter: str = "cpython", **constants: object) -> list[str]:
    """Run an example to its end; return the lines that it printed."""
    with start(name, folder, interpreter, **constants) as process:
        try:
            printed = process.communicate(timeout=WAIT_LIMIT_S)[0]
        finally:
            process.kill()
    assert process.returncode == 0, printed
    return printed.splitlines()


class Peer:
    """A client built on paho: what it receives is evidence independent of this library."""

    def __init__(self, port: int, topic_filter: str = "of/a/peer/that/only/publishes") -> None:
        self._changed = threading.Condition()
        self._received: list[tuple[str, bytes]] = []
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(topic_filter, 1)
        assert subscribed.wait(WAIT_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: str | bytes, qos: int = 1) -> None:
        """Publish a message; return when the broker has it."""
        self._client.publish(topic, payload, qos).wait_for_publish(WAIT_LIMIT_S)

    def wait_for(self, condition: Callable[[list[tuple[str, bytes]]], object]) -> list[tuple[str, bytes]]:
        """Wait until the messages received, as (topic, payload) in order, meet the condition; return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self._received), WAIT_LIMIT_S), self._received
            return list(self._received)

    def _on_message(self, _client, _userdata, message) -> None:
        with self._changed:
            self._received.append((message.topic, message.payload))
            self._changed.notify_all()
