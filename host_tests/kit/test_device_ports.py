"""How a command finds its board: by USB id or registry, and it never guesses between two."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cable import Cable
from umqtt_kit.device import Info, Port, choose, find_ports
from umqtt_kit.device.guess import candidates, guess_board
from umqtt_kit.device.running import Running, State
from umqtt_testkit import registry
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError

PICO = SimpleNamespace(
    device="/dev/ttyACM0", vid=0x2E8A, pid=0x0005, serial_number="e6614c311b7b2a2f", description="Board in FS mode"
)
PRINTER = SimpleNamespace(device="/dev/ttyACM1", vid=0x04B8, pid=0x0202, serial_number=None, description="Printer")
MAINBOARD = SimpleNamespace(device="/dev/ttyS0", vid=None, pid=None, serial_number=None, description="n/a")


@pytest.fixture
def plug(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    def plug_in(*ports: SimpleNamespace) -> None:
        class Comparable(SimpleNamespace):
            def __lt__(self, other: SimpleNamespace) -> bool:
                return self.device < other.device

        monkeypatch.setattr("serial.tools.list_ports.comports", lambda: [Comparable(**vars(port)) for port in ports])

    return plug_in


def test_boards_are_told_by_their_usb_id_and_other_ports_left_alone(plug):
    plug(PICO, PRINTER, MAINBOARD)
    found = {port.name: port for port in find_ports()}
    assert set(found) == {"ttyACM0", "ttyACM1"}, "a port without a USB id is nobody's board"
    assert "RPI_PICO_W" in found["ttyACM0"].boards
    assert found["ttyACM1"].boards == ()


def test_the_only_board_is_meant_and_of_two_none(plug):
    plug(PICO, PRINTER)
    assert choose(None).name == choose("auto").name == "ttyACM0"
    with registry.registered("bench", "/dev/pts/999"):
        with pytest.raises(KitError, match="there are 2 boards: ttyACM0, bench — say which") as caught:
            choose("auto")
        assert caught.value.exit_code == 2
        assert choose("bench") == Port("/dev/pts/999", "bench", ("UNIX",), True, description="virtual board, ")


@pytest.mark.parametrize("device", ["/dev/ttyACM0", "ttyACM0", "e6614c311b7b2a2f"])
def test_a_board_is_named_by_path_name_or_serial_number(plug, device: str):
    plug(PICO, PRINTER)
    assert choose(device).path == "/dev/ttyACM0"


def test_a_port_of_unknown_kind_is_used_only_when_it_is_named(plug):
    plug(PRINTER)
    with pytest.raises(KitError, match="no known board is connected — there are: ttyACM1") as caught:
        choose("auto")
    assert caught.value.exit_code == 3
    assert choose("ttyACM1").boards == ()


def test_nothing_connected_and_a_name_that_is_not_there_say_what_to_do(plug):
    for device in ("auto", "bench-7"):
        with pytest.raises(KitError, match="plug one in, or start a virtual one") as caught:
            choose(device)
        assert caught.value.exit_code == 3


def test_a_link_to_a_port_is_that_port(plug, tmp_path: Path):
    link = tmp_path / "ttyBoard"
    link.symlink_to("/dev/null")
    assert choose(str(link)).path == "/dev/null"


def test_a_board_that_was_killed_is_found_no_more(cable: Cable):
    with registry.registered("bench", "/dev/pts/999"):
        assert [entry.name for entry in registry.entries()] == ["bench"]
        # The same file without its owner's lock, as the kernel leaves it after a SIGKILL.
        (registry.folder() / "dead").write_bytes((registry.folder() / "bench").read_bytes())
        assert [entry.name for entry in registry.entries()] == ["bench"]
        assert not (registry.folder() / "dead").exists()
        with pytest.raises(registry.RegistryError, match="runs already"), registry.registered("bench", "/dev/pts/1"):
            pass
    assert registry.entries() == []


def test_a_registry_that_others_could_write_is_not_believed(cable: Cable):
    with registry.registered("bench", "/dev/pts/999"):
        os.chmod(registry.folder(), 0o777)
        with pytest.raises(KitError, match="must be a folder of yours") as caught:
            find_ports()
        assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b"])
def test_a_bad_name_for_a_board_is_refused(cable: Cable, name: str):
    with pytest.raises(registry.RegistryError, match="no name for a board"), registry.registered(name, "/dev/pts/1"):
        pass


def _info(machine: str, platform: str) -> Info:
    return Info("1.28.0", 6, platform, machine, "", None, 0, 0, 0, 0, None, None, False, False, "wifi", ())


@pytest.mark.parametrize(
    ("machine", "platform", "board"),
    [
        ("Raspberry Pi Pico W with RP2040", "rp2", "RPI_PICO_W"),
        ("Raspberry Pi Pico 2 W with RP2350", "rp2", "RPI_PICO2_W"),
        ("Generic ESP32 module with ESP32", "esp32", "ESP32_GENERIC"),
        ("Generic ESP32S3 module with ESP32S3", "esp32", "ESP32_GENERIC_S3"),
        ("Some maker's board with ESP32C3", "esp32", "ESP32_GENERIC_C3"),
        ("ESP32C6 module with ESP32C6", "esp32", "ESP32_GENERIC_C6"),
        # The form that newer images use.
        ("ESP32C6 module with ESP32-C6", "esp32", "ESP32_GENERIC_C6"),
        ("linux [GCC 14.2.1] version", "linux", "UNIX"),
    ],
)
def test_micropython_tells_which_board_it_runs_on(machine: str, platform: str, board: str):
    assert candidates(_info(machine, platform), Port("/dev/ttyACM0", "ttyACM0")) == [board]


def test_a_board_that_is_not_described_is_never_guessed():
    with pytest.raises(KitError, match="say which is nearest: --board NAME") as caught:
        guess_board(_info("PYBv1.1 with STM32F405RG", "pyboard"), Port("/dev/ttyACM0", "ttyACM0"))
    assert caught.value.exit_code == 2


def test_devices_shows_what_runs_and_what_cannot_be_asked(cable: Cable, plug):
    with cable.board("bench", files={"settings.json": b'{"device_id": "pump-7"}'}):
        plug(PRINTER)
        answer = cable.umqtt("devices", "--json")
        printer, bench = sorted(answer.json["boards"], key=lambda row: row["name"] == "bench")
        assert answer.code == 0
        assert (bench["board"], bench["info"]["device_id"], bench["info"]["app_version"]) == ("UNIX", "pump-7", None)
        assert (printer["board"], printer["info"], printer["problem"]) == (None, None, None)
        shown = cable.umqtt("devices")
        assert "pump-7" in shown.stdout and "unknown" in shown.stdout
        assert cable.umqtt("devices", "--passive", "--json").json["boards"][1]["info"] is None
        plug(PICO)
        answer = cable.umqtt("devices")
        assert "no answer" in answer.stdout
        assert "there is no port /dev/ttyACM0" in answer.stderr


def test_devices_without_any_exits_with_3(cable: Cable):
    answer = cable.umqtt("devices", "--json")
    assert (answer.code, answer.json) == (3, {"boards": [], "boot_loaders": []})


def test_the_virtual_board_of_the_command_line_is_found_by_its_name(cable: Cable, tmp_path: Path):
    import subprocess
    import sys

    command = [sys.executable, "-m", "umqtt_testkit.board", str(tmp_path / "cellar.img")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("board at /dev/")
        try:
            assert choose("auto").name == "cellar"
        finally:
            process.terminate()
    assert find_ports() == []


def test_silent_boards_are_asked_side_by_side(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    """Planted: one after the other, each for 10 s."""
    meeting = threading.Barrier(2)

    def silent(self: Running) -> State:
        meeting.wait(WAIT_LIMIT_S)
        return State.SILENT

    monkeypatch.setattr(Running, "state", silent)
    with cable.board("cellar"), cable.board("roof"):
        answer = cable.umqtt("devices", "--json")
    assert answer.code == 0 and [board["name"] for board in answer.json["boards"]] == ["cellar", "roof"]
    assert all("cannot answer questions" in board["problem"] for board in answer.json["boards"])
