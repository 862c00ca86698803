"""The load generator of the broker's bench notices every fault, and goals are compared the right way."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench_rows import Row
from broker_lab import Lab, Running
from broker_plan import (
    CASES,
    CPU,
    FLASHMQ,
    RATE,
    Case,
    faults,
)
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="the load generator needs Linux and a C compiler (cc)"
)

# The patience covers a busy machine that holds a broker up; it does not excuse a slow broker.
_TINY = {"seconds": 0.02, "warm": 0.01, "patience": WAIT_LIMIT_S}
# Makes a load small enough for a test without changing its kind.
_SMALLER = {"connections": 200, "messages": 200}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(None) as lab:
        yield lab


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_tiny_run_of_each_case_delivers_everything_in_order(lab: Lab, case: Case):
    options = {name: min(value, _SMALLER.get(name, value)) for name, value in case.options.items()} | _TINY
    result = lab.run(lab.broker(case.ours), case.mode, options)
    assert not faults(result)
    assert result["counted"] > 0 and result["seconds"] > 0 and result["cpu_us"] > 0


class _LyingBroker:
    """Echoes messages to the one subscriber, altered by `lie`; speaks as much MQTT as the generator needs."""

    def __init__(self, lie: Callable[[int, bytes], list[bytes]]) -> None:
        self._lie = lie
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._subscriber: socket.socket | None = None
        self._sent = 0
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> _LyingBroker:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while head := stream.read(2):
                body = stream.read(head[1])  # no packet here is longer than 127 bytes
                kind = head[0] >> 4
                if kind == encoder.CONNECT:
                    connection.sendall(encoder.connack())
                elif kind == encoder.SUBSCRIBE:
                    self._subscriber = connection
                    connection.sendall(encoder.suback(body[0] << 8 | body[1], body[-1]))
                elif kind == encoder.PUBLISH:
                    assert self._subscriber is not None
                    if head[0] & 6:
                        at = 2 + (body[0] << 8 | body[1])
                        connection.sendall(encoder.acknowledgement(encoder.PUBACK, body[at] << 8 | body[at + 1]))
                    for packet in self._lie(self._sent, head + body):
                        self._subscriber.sendall(packet)
                    self._sent += 1
                elif kind == encoder.PINGREQ:
                    connection.sendall(encoder.pingresp())
                elif kind == encoder.DISCONNECT:
                    break
        except OSError:
            return  # the generator has all it wants
        stream.close()
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _swap() -> Callable[[int, bytes], list[bytes]]:
    kept: list[bytes] = []

    def swap(number: int, packet: bytes) -> list[bytes]:
        if number == 2:
            kept.append(packet)
            return []
        return [packet, *kept] if number == 3 else [packet]

    return swap


_LIES = {
    "nothing": (lambda: lambda number, packet: [packet], ""),
    "one lost": (lambda: lambda number, packet: [packet] if number != 3 else [], "1 missing"),
    "one repeated": (lambda: lambda number, packet: [packet] * (2 if number == 3 else 1), "1 repeated"),
    "two swapped": (_swap, "1 missing, 1 repeated"),
    "one cut": (lambda: lambda number, packet: [packet if number != 3 else b"\x30\x02\0\0"], "1 missing, 1 wrong"),
    "one at QoS 1": (
        lambda: lambda number, packet: [packet if number != 3 else b"\x32" + packet[1:]],
        "1 missing, 1 wrong",
    ),
}


@pytest.mark.parametrize("lie", _LIES)
def test_the_generator_counts_what_a_broker_does_wrong(lab: Lab, lie: str):
    make, found = _LIES[lie]
    with _LyingBroker(make()) as liar, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as it:
        options = {"rate": 500, "seconds": 0.02, "warm": 0.02, "patience": WAIT_LIMIT_S}
        assert faults(lab.run(Running("liar", it, liar.port), "flow", options)) == found


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).with_name("broker.py")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * WAIT_LIMIT_S, check=False)


@pytest.mark.smoke
def test_each_row_is_a_line_of_json_with_the_promised_keys_and_what_is_missing_is_said():
    ended = _bench("--quick", "--json", "--case", "QoS 1 window 100")
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["case"] for row in found} >= {f"QoS 1 window 100: {RATE}", f"QoS 1 window 100: {CPU}"}
    assert all(row.keys() == Row("", None).as_dict().keys() and row["ours"] > 0 for row in found)
    assert f"{FLASHMQ} is not measured" in ended.stderr
