"""umqtt doctor --hardware: every trial runs on a board, and finds a chip that differs from the assumptions."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from cable import Cable, broker
from impatient import builds_impatient
from kit_command import umqtt_here
from owner import own
from umqtt_kit.deploy.build import build
from umqtt_kit.device import choose, running
from umqtt_kit.doctor import hardware, round_trip
from umqtt_kit.doctor.checks import Finding
from umqtt_kit.mqtt import Access
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import WAIT_LIMIT_S

_ID = "pump-7"
_NO_BROKER = "mqtt://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _in_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the trials: the watchdog and the sleep of a virtual board take as long as those of a real one.

    What runs here is not the firmware, so it never answers a question, however long the tool waits.
    """
    monkeypatch.setattr(running, "_ASKED_AGAIN_AFTER_S", 0.1)
    for name, value in (("_WATCHDOG_MS", 600), ("_SLEEP_MS", 600), ("_WRITES_FOR_S", 0.3), ("_FLASH_KB", 8)):
        monkeypatch.setattr(hardware, name, value)


def tried(cut: Callable[[], None] | None, address: str = _NO_BROKER) -> dict[str, Finding]:
    found = hardware.try_hardware(choose("bench"), cut, Access((address,)), lambda line: None)
    return {finding.name: finding for finding in found}


@pytest.fixture
def only_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what has nothing to do with the network."""
    for name in ("_flash", "_power_cut", "_watchdog", "_deep_sleep"):
        monkeypatch.setattr(hardware, name, lambda *_: iter(()))


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Confirm a version after half a second, and repeat an unanswered ping at once."""
    monkeypatch.setattr(round_trip, "_ASKED_EVERY_S", 1.0)
    yield from builds_impatient(tmp_path / "firmware", "0.1.0")


def configured(settings: dict[str, object], secrets: dict[str, object] | None = None) -> dict[str, bytes]:
    """Return the two files of a board with these values."""
    values = {"settings.json": {"device_id": _ID, **settings}, "secrets.json": secrets or {}}
    return {path: json.dumps(value).encode() for path, value in values.items()}


class Cut:
    """Cuts the power after some replacements were reported; meanwhile(board) runs while it is off."""

    def __init__(self, board: VirtualBoard, meanwhile: Callable[[VirtualBoard], None] = lambda board: None) -> None:
        self._board = board
        self._meanwhile = meanwhile

    def __call__(self) -> None:
        threading.Thread(target=self._cut).start()

    def _cut(self) -> None:
        self._board.wait_for("\n10")
        self._board.kill()
        self._meanwhile(self._board)
        self._board.start()


@pytest.mark.parametrize("model", ["ESP32_GENERIC", "RPI_PICO_W"])
def test_a_board_that_is_as_assumed_passes_and_runs_its_program_in_the_end(cable: Cable, model: str):
    program = b"import time\nprint('my program')\nwhile True: time.sleep_ms(10)\n"
    with cable.board(board=model, files={"main.py": program}) as board:
        found = tried(Cut(board))
        assert {name for name, finding in found.items() if finding.state == "ok"} == {
            "image", "firmware", "memory", "flash", "power cut", "watchdog", "deep sleep",
        }, found  # fmt: skip
        for name in ("network", "update"):
            assert found[name].text == "not tried: the board has no settings"
        board.wait_for("my program")
        board.stop()
        assert not [path for path in board.files() if "umqtt" in path]


def _forget(board: VirtualBoard) -> None:
    board.install({"umqtt-try": b"3"})


def test_a_flash_that_forgets_what_was_told_is_found(cable: Cable):
    with cable.board() as board:
        found = tried(Cut(board, _forget))
    assert found["power cut"].state == "fail" and "and 3 was there afterwards" in found["power cut"].text


def test_a_watchdog_that_does_not_bite_is_found(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    # A watchdog that does not exist: the program continues for as long as anybody looks.
    monkeypatch.setattr(hardware.scripts, "STARVE", "import time\nprint(1)\ntime.sleep_ms({timeout_ms})")
    with cable.board():
        found = tried(None)
    assert (found["watchdog"].state, found["power cut"].state) == ("fail", "warn")
    assert "did not reset the board" in found["watchdog"].text


def test_a_sleep_that_ends_at_once_is_found(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "_SLEEP_MS", 3_000)
    with cable.board(deepsleep_s=0.5):
        found = tried(None)["deep sleep"]
    assert found.state == "fail" and "woke too early" in found.remedy


def test_a_step_that_fails_leaves_the_next_ones_their_turn(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware.scripts, "TRY_FLASH", "open('/umqtt-try.tmp', 'w').close()\nraise OSError(28)")
    with cable.board() as board:
        found = tried(None)
        board.stop()
        assert not [path for path in board.files() if "umqtt" in path]
    assert found["flash"].state == "fail" and found["watchdog"].state == "ok"


def test_the_report_is_markdown_and_nothing_happens_to_a_program_unasked(cable: Cable):
    with cable.board() as board:
        refused = cable.umqtt("doctor", "--hardware")
        assert (refused.code, refused.stderr.count("\n")) == (2, 1) and "--yes" in refused.stderr
        assert board.lives == 1
        answer = cable.umqtt("doctor", "--hardware", "--yes")
        assert answer.code == 0, answer.stderr
        head, empty, *table = answer.stdout.rstrip().split("\n")
        assert head.startswith("### Hardware report, umqtt ") and empty == ""
        assert table[1] == "|---|---|---|" and all(row.count("|") == 4 for row in table)
        values = cable.umqtt("doctor", "--hardware", "--yes", "--json").json
        assert values["ok"] and {"flash", "watchdog"} <= {check["name"] for check in values["checks"]}


def test_an_image_without_a_network_is_named_and_not_the_settings(cable: Cable, only_the_network: None):
    """Planted: the board's settings are read first, and a board without any is told to get some."""
    with cable.board(env={"UMQTT_BOARD_NETWORK": "none"}):
        found = tried(None)
    for name in ("network", "update"):
        assert found[name].state == "warn" and found[name].text.endswith("has no network")
        assert "umqtt flash IMAGE" in found[name].remedy


def test_settings_that_are_wrong_are_not_called_missing(cable: Cable, only_the_network: None):
    """Planted: any error in the settings counts as a board without settings."""
    with cable.board(files=configured({"brokers": [_NO_BROKER], "interval": 1})):
        found = tried(None)["network"]
    assert found.state == "warn" and "did you mean interval_ms" in found.text


@contextlib.contextmanager
def _tls_listener(folder: Path) -> Iterator[tuple[int, Future[bytes]]]:
    """Listen for one TLS connection; yield the port, and what comes first after the handshake."""
    for words in (("ca",), ("broker", "127.0.0.1")):
        done = umqtt_here(folder, "certs", *words)
        assert done.code == 0, done.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certs/broker/cert.pem", folder / "certs/broker/key.pem")

    def serve() -> bytes:
        with context.wrap_socket(listener.accept()[0], server_side=True) as link:
            return link.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(WAIT_LIMIT_S)
        yield listener.getsockname()[1], pool.submit(serve)


def test_a_handshake_is_carried_out_and_its_memory_is_measured(cable: Cable, tmp_path: Path, only_the_network: None):
    """Planted: the handshake is begun, and its end is not waited for."""
    with _tls_listener(tmp_path) as (port, received):
        settings = {"brokers": [f"mqtts://127.0.0.1:{port}"]}
        with cable.board(board="RPI_PICO_W", files=configured(settings, {"tls": {"ca": "/ca.pem"}})):
            found = tried(None)["tls"]
        assert found.state == "ok", found
        assert received.result(WAIT_LIMIT_S) == b"\x10"
    assert found.text.startswith("handshake in ") and "bytes of Python's heap" in found.text


_SHORT_WATCHDOG = 1000


def test_a_listener_that_says_nothing_outlasts_the_watchdog_and_is_a_finding(
    cable: Cable, only_the_network: None, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the handshake blocks, so the watchdog is not fed and resets the board."""
    monkeypatch.setattr(hardware, "_HANDSHAKE_WITHIN_S", 2.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"mqtts://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"brokers": [url], "watchdog_ms": _SHORT_WATCHDOG}
        with cable.board(board="RPI_PICO_W", files=configured(settings, {"tls": {"ca": "/ca.pem"}})):
            found = tried(None)
    assert "network" not in found, found["network"]
    assert found["tls"].state == "fail" and found["tls"].text.endswith("(no answer)")


# The board imports this instead of its own module. Like a real look-up, it lets callbacks run while it waits.
_SLOW_NAMES = b"""
import time
SOCK_STREAM = 1
class socket:
    def close(self): pass
def getaddrinfo(*_):
    for _ in range(250): time.sleep_ms(10)
    raise OSError(-2)
"""


@pytest.mark.parametrize("scheme", ["mqtts", "mqtt"], ids=["with --hardware", "without"])
def test_a_name_look_up_outlasts_the_watchdog(cable: Cable, only_the_network: None, scheme: str):
    """Planted: nothing feeds the watchdog during the look-up."""
    settings = {"brokers": [f"{scheme}://broker.example"], "watchdog_ms": _SHORT_WATCHDOG}
    secrets = {"tls": {"ca": "/ca.pem"}} if scheme == "mqtts" else None
    files = {**configured(settings, secrets), "socket.py": _SLOW_NAMES}
    with cable.board(board="RPI_PICO_W", files={**files, "main.py": b"while True: pass\n"}):
        if scheme == "mqtts":
            found = {name: finding.text for name, finding in tried(None).items()}
        else:
            answer = cable.umqtt("doctor", "--interrupt", "--json").json
            found = {check["name"]: check["text"] for check in answer["checks"]}
    said = found["tls" if scheme == "mqtts" else "mqtt://broker.example from the board"]
    assert "OSError(-2" in said, found


def _running(port: int, **secrets: object) -> dict[str, bytes]:
    settings = {"brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 100}
    return {**build("UNIX", ()).files, **configured(settings, secrets)}


def test_a_version_is_sent_and_confirmed_and_the_one_before_runs_again(
    cable: Cable, tmp_path: Path, only_the_network: None, impatient: None, monkeypatch: pytest.MonkeyPatch
):
    owned = own(_ID, tmp_path, monkeypatch)
    with broker(tmp_path) as port, cable.board(files=_running(port, **owned)) as board:
        answer = cable.umqtt("doctor", "--hardware", "--yes", "--broker", f"mqtt://127.0.0.1:{port}")
        assert answer.code == 0, answer.stderr
        row = next(line for line in answer.stdout.splitlines() if line.startswith("| update "))
        assert row.startswith("| update | ok | 0.1.0+check in slot a confirmed after "), row
        assert "0.1.0 in slot base" in row
        assert "try: umqtt provision" in answer.stderr, "what to do about that which was not tried"
        board.stop()
        assert b"0.1.0+check" in board.read("ota/a/manifest")


def test_a_version_that_stays_in_spite_of_the_rollback_is_a_failure(
    cable: Cable, tmp_path: Path, only_the_network: None, impatient: None, monkeypatch: pytest.MonkeyPatch
):
    """Planted: what runs after the rollback is not compared with what ran before."""
    owned = own(_ID, tmp_path, monkeypatch)
    monkeypatch.setattr(round_trip, "roll_back", lambda *_: None)
    with broker(tmp_path) as port, cable.board(files=_running(port, **owned)):
        found = tried(None, f"mqtt://127.0.0.1:{port}")["update"]
    assert found.state == "fail" and "0.1.0 in slot base, was expected" in found.remedy


def test_a_device_that_refuses_the_update_is_a_failure_in_its_own_words(
    cable: Cable, tmp_path: Path, only_the_network: None, impatient: None, monkeypatch: pytest.MonkeyPatch
):
    """Planted: an update that fails counts as one that was not tried."""
    own(_ID, tmp_path, monkeypatch)
    with broker(tmp_path) as port, cable.board(files=_running(port, commands={"key": "00" * 32})):
        found = tried(None, f"mqtt://127.0.0.1:{port}")["update"]
    assert found.state == "fail" and "its signature is wrong" in found.text


def test_without_a_broker_or_a_key_no_update_is_sent_and_the_reason_is_reported(
    cable: Cable, tmp_path: Path, only_the_network: None, monkeypatch: pytest.MonkeyPatch
):
    """Planted: a broker that this computer does not reach is a failure of the board."""
    with cable.board(files=_running(1)):
        found = tried(None)["update"]
        assert (found.state, found.remedy) == ("warn", "umqtt keys make") and "has no key of pump-7" in found.text
        own(_ID, tmp_path, monkeypatch)
        found = tried(None)["update"]
    assert found.state == "warn" and found.text.startswith(f"not tried: {_NO_BROKER}: nothing listens there")
    assert "--broker" in found.remedy
