"""Every message arrives once over a bad serial line, through `umqtt serial` and mosquitto."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from raw_terminal import open_raw_terminal
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(2)


class Cable:
    """Two joined terminals; about one byte in `every` is lost, garbled or doubled."""

    def __init__(self, seed: int, every: int) -> None:
        self._rng = random.Random(seed)
        self._every = every
        self.faults = 0
        here, self._here, self.board = open_raw_terminal()
        there, self._there, self.gateway = open_raw_terminal()
        self._outer = [here, there]
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._relay)
        self._thread.start()

    def close(self) -> None:
        self._stop.close()
        self._thread.join(WAIT_LIMIT_S)
        self._stopped.close()
        for descriptor in (*self._outer, self._here, self._there):
            os.close(descriptor)

    def _relay(self) -> None:
        while True:
            ready = select.select([*self._outer, self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            for here, there in (self._outer, self._outer[::-1]):
                if here in ready:
                    os.write(there, self._pass_on(os.read(here, 1024)))

    def _pass_on(self, data: bytes) -> bytes:
        passed = bytearray()
        for byte in data:
            if self._every and self._rng.randrange(self._every) == 0:
                self.faults += 1
                passed += self._rng.choice((b"", bytes([byte ^ 1]), bytes([byte, byte])))
            else:
                passed.append(byte)
        return bytes(passed)


@pytest.fixture
def cable(request: pytest.FixtureRequest) -> Iterator[Cable]:
    made = Cable(7, request.param)
    yield made
    made.close()


def _gateway(cable: Cable, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "umqtt_cli", "serial", cable.gateway, "--broker", url]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _read_up_to(gateway: subprocess.Popen[str], text: str) -> None:
    assert gateway.stderr is not None
    assert any(text in line for line in gateway.stderr), f"it ended and has not said: {text}"


@pytest.mark.parametrize("cable", [0, 400], ids=["good", "bad"], indirect=True)
def test_every_message_passes_once_whatever_the_line_does(program, mosquitto, cable: Cable) -> None:
    """Planted: garbled bytes are handed over; lost bytes end the link."""
    with _gateway(cable, f"mqtt://127.0.0.1:{mosquitto()}") as gateway:
        try:
            # A board that has waited long for its computer calls again, and is connected twice.
            _read_up_to(gateway, "waiting for a board")
            program("serial_line.py", tty=cable.board, count=20).finish()
        finally:
            gateway.terminate()
        said = gateway.communicate(timeout=WAIT_LIMIT_S)[1]
    assert gateway.returncode == 0
    assert said.count("a board is connected") == 1, said
    assert bool(cable.faults) == bool(cable._every)


@pytest.mark.parametrize("cable", [0], indirect=True)
def test_a_broker_that_goes_and_comes_back_and_a_gateway_that_is_killed_lose_nothing(
    program, cable: Cable, tmp_path
) -> None:
    """Planted: the gateway ends if it cannot reach its broker."""
    with Mosquitto(tmp_path, "allow_anonymous true", "persistence true", f"persistence_location {tmp_path}/") as broker:
        url = f"mqtt://127.0.0.1:{broker.port}"
        gateway = _gateway(cable, url)
        try:
            running = program("serial_line.py", tty=cable.board, count=60, keeps=True)
            running.until("half")
            broker.stop()
            _read_up_to(gateway, "the broker has gone")
            gateway.kill()
            gateway.communicate(timeout=WAIT_LIMIT_S)
            gateway = _gateway(cable, url)
            _read_up_to(gateway, "the broker cannot be reached")
            broker.start()
            running.finish()
        finally:
            gateway.terminate()
            gateway.communicate(timeout=WAIT_LIMIT_S)


@pytest.mark.parametrize("cable", [0], indirect=True)
def test_a_board_that_is_reset_in_a_message_finds_its_session_at_mosquitto(program, mosquitto, cable: Cable) -> None:
    """Planted: the new connection goes on over the old one, where mosquitto finds a second CONNECT."""
    port = mosquitto()
    sender = paho.Client(paho.CallbackAPIVersion.VERSION2)
    sender.connect("127.0.0.1", port)
    sender.loop_start()

    def send(numbers: range) -> None:
        for number in numbers:
            sender.publish("serial", str(number).rjust(200), 1).wait_for_publish(WAIT_LIMIT_S)

    with _gateway(cable, f"mqtt://127.0.0.1:{port}") as gateway:
        try:
            _read_up_to(gateway, "waiting for a board")
            board = program("serial_session.py", tty=cable.board, count=0)
            board.until("subscribed")
            send(range(10))  # the first of them waits in the line
            board.kill()
            send(range(10, 20))
            found = program("serial_session.py", tty=cable.board, count=20).until("done")
        finally:
            gateway.terminate()
            gateway.communicate(timeout=WAIT_LIMIT_S)
            sender.disconnect()
            sender.loop_stop()
    assert found["present"] == [True]
    assert found["came"] == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["/dev/null/none"], 3, "there is no port"),
        (["/dev/ttyX", "--broker", "http://a"], 2, "no broker's address"),
        (["/dev/ttyX", "--broker", "mqtt://u:p@a"], 2, "must hold no user name"),
        (["/dev/ttyX", "--broker", "mqtts://a", "--ca", __file__], 2, "PEM certificates"),
        (["/dev/ttyX", "--baud", "9"], 2, "1200"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], arguments, code, said) -> None:
    assert run(["serial", *arguments]) == code
    told = capsys.readouterr().err
    assert said in told and told.count("\n") <= 3, told
