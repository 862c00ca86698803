"""umqtt new: what it makes works unchanged, and never replaces something that exists."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cable import Cable, broker
from umqtt_kit.commands import deploy as deploy_command
from umqtt_kit.data import board_folders
from umqtt_kit.deploy import build as build_module
from umqtt_kit.deploy.plan import read_record
from umqtt_kit.device import Board
from umqtt_testkit.devices import Devices

from umqtt_cli.__main__ import run

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Compile only once: the firmware is the same for each deployment, and compiling it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "build", cache(build_module.build))
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the folder where the commands run."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def test_a_new_sensor_is_compiled_deployed_found_by_its_settings_and_read(cable: Cable, folder: Path, tmp_path: Path):
    made = cable.umqtt("new", "sensor", "door", "--json").json
    assert (folder / made["file"]).is_file()
    with broker(tmp_path) as port:
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 50}
        with cable.board(files={"settings.json": json.dumps(settings).encode()}) as virtual:
            # The entry that the command printed, except for the name, which tells two doors apart.
            entry = [{**made["sensors"][0], "name": "north"}]
            assert cable.umqtt("provision", "--set", f"sensors={json.dumps(entry)}").code == 0
            answer = cable.umqtt("deploy", "--sensors", "sensors", "--json")
            assert answer.code == 0, answer.stderr
            assert answer.json["reading"]["m"]["north_door"] in (0, 1)
            # The next deployment without the option keeps the sensors, and changes of the folder count.
            assert cable.umqtt("deploy", "--json", "--no-wait").json["changed"] is False
            assert cable.umqtt("new", "sensor", "gate").code == 0
            (folder / "sensors" / "door.py").unlink()
            changed = cable.umqtt("deploy", "--sensors", "sensors", "--dry-run", "--json").json
            assert (list(changed["send"]), changed["remove"]) == (["/sensors/gate.mpy"], ["/sensors/door.mpy"])
            with Board(virtual.port) as board:
                assert "/sensors/door.mpy" in read_record(board).files


def test_a_new_sensor_on_i2c_reads_the_chip_that_is_connected_to_a_virtual_board(cable: Cable, folder: Path):
    """Planted: an answer of the chip with a wrong checksum; a board that is not told what is connected."""
    made = cable.umqtt("new", "sensor", "climate", "--i2c", "0x44", "--json").json
    assert made["sensors"] == [{"module": "climate", "scl": 5, "sda": 4}]
    with cable.board() as virtual:
        virtual.hooks(**Devices(["sht31@0x44:temp_c=-7.25,humidity_pct=61"]).hooks(at_s=0))
        with Board(virtual.port) as board:
            board.exec((folder / made["file"]).read_text() + "sensor = Sensor(5, 4)\nsensor.start()\n")
            board.exec("import time\ntime.sleep_ms(sensor.lead_ms)\n")
            assert board.eval("sensor.read()") == {"climate_c": pytest.approx(-7.25, abs=0.01), "climate_pct": 61}


def test_a_sensor_that_does_not_compile_is_told_by_file_and_line_and_nothing_is_sent(cable: Cable, folder: Path):
    """Planted: the last line of mpy-cross alone, which does not say where the mistake is."""
    (folder / "sensors").mkdir()
    with cable.board():
        answer = cable.umqtt("deploy", "--sensors", "sensors", "--no-wait")
        assert answer.code == 2 and "umqtt new sensor" in answer.stderr
        (folder / "sensors" / "door.py").write_text("class Sensor\n")
        answer = cable.umqtt("deploy", "--sensors", "sensors", "--no-wait")
        assert answer.code == 2 and "sensors/door.py" in answer.stderr and "SyntaxError" in answer.stderr
        (folder / "sensors" / "door.py").write_text("import machine\n\nclass Sensor\n")
        assert "sensors/door.py, line 3: " in cable.umqtt("deploy", "--sensors", "sensors", "--no-wait").stderr
        assert cable.umqtt("deploy", "--dry-run", "--json").json["unchanged"] == 0


def test_modules_in_a_folder_of_the_sensors_are_refused_by_deploy_and_ota(cable: Cable, folder: Path):
    """Planted: they are left out without a word, and the sensor that imports them fails on the board."""
    for name in ("__pycache__", ".hidden", "data", "vendor"):
        inner = folder / "sensors" / name
        inner.mkdir(parents=True)
        (folder / "sensors" / "door.py").write_text("class Sensor: pass\n")
        (inner / ("table.csv" if name == "data" else "chip.py")).write_text("")
        with cable.board():
            answer = cable.umqtt("deploy", "--sensors", "sensors", "--dry-run")
        assert answer.code == (2 if name == "vendor" else 0), answer.stderr
    assert answer.stderr.count("\n") == 1 and "--sensors sensors: vendor is a folder of modules" in answer.stderr
    assert cable.umqtt("ota", "--export", "store", "--sensors", "sensors").stderr == answer.stderr


@pytest.mark.parametrize("like", sorted(board_folders()))
def test_a_new_board_passes_the_checks_of_the_boards_that_are_here(like, folder: Path, monkeypatch, capsys):
    assert run(["new", "board", "GREENHOUSE", "--like", like, "--json"]) == 0
    made = Path(json.loads(capsys.readouterr().out)["folder"])
    checks = _checks_of_boards()
    described = json.loads((made / "board.json").read_text())
    assert checks.violations(described, checks.SCHEMA) == []
    monkeypatch.setattr(checks, "BOARDS", folder / "boards")
    checks.test_board_json_follows_the_schema("GREENHOUSE")
    checks.test_a_folder_is_complete("GREENHOUSE")
    checks.test_pins_py_says_what_board_json_says("GREENHOUSE")
    readme = (made / "README.md").read_text()
    assert "$" not in readme and "GREENHOUSE" in readme
    assert f"boards/{like}/manifest.py\n#" not in (made / "manifest.py").read_text()
    compile((made / "manifest.py").read_text(), "manifest.py", "exec")


def _checks_of_boards():
    """Return the module that checks every folder under boards/."""
    file = _ROOT / "host_tests" / "boards" / "test_board_files.py"
    spec = importlib.util.spec_from_file_location("checks_of_boards", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_board_of_ones_own_is_known_to_the_other_commands(cable: Cable, folder: Path, monkeypatch):
    assert cable.umqtt("new", "board", "GREENHOUSE", "--like", "UNIX").code == 0
    (folder / "boards" / "GREENHOUSE" / "pins.py").write_text("LED = 99\n")
    with cable.board():
        answer = cable.umqtt("deploy", "--board", "GREENHOUSE", "--no-wait")
        assert answer.code == 2 and "there is no board 'GREENHOUSE' — known are: ESP32_GENERIC" in answer.stderr
        monkeypatch.setenv("UMQTT_BOARDS", "boards")
        answer = cable.umqtt("deploy", "--board", "GREENHOUSE", "--no-wait")
        assert answer.code == 0 and "for GREENHOUSE" in answer.stdout
        with Board(deploy_command.choose("bench"), restart=False) as board:
            assert board.eval("__import__('pins').LED") == 99
        monkeypatch.setenv("UMQTT_BOARDS", "nowhere")
        assert "UMQTT_BOARDS=nowhere is not a folder" in cable.umqtt("devices").stderr


@pytest.mark.parametrize("text", ['{"usb_ids": [5, null, []]}', '{"mcu": 5}', "[]", "{", "[" * 100_000])
def test_a_board_described_wrongly_is_no_model_for_another(text, folder: Path, monkeypatch, capsys):
    described = folder / "mine" / "WRONG"
    described.mkdir(parents=True)
    (described / "board.json").write_text(text)
    monkeypatch.setenv("UMQTT_BOARDS", "mine")
    assert run(["new", "board", "GREEN", "--like", "WRONG"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and "WRONG" in error and "—" in error
    assert run(["devices", "--passive"]) in ((0, 3) if text.startswith('{"') else (2,))
    assert capsys.readouterr().err.count("\n") <= 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sensor", "Door"], "Door"),
        (["sensor", "a-b"], "a-b"),
        (["sensor", "9x"], "9x"),
        (["sensor", "climate", "--i2c", "x"], "--i2c x"),
        (["sensor", "climate", "--i2c", "0x78"], "from 0x08 to 0x77"),
        (["sensor", "climate", "--i2c", "44"], "write 0x44, as in data sheets, or 0x2c for 44"),
        (["sensor", "../x"], "../x"),
        (["sensor", "class"], "'class' is a word of Python"),
        (["sensor", "tür"], "a to z"),
        (["sensor", "x" * 33], "at most 32"),
        (["sensor", "bme280"], "sensor of the firmware"),
        (["sensor", "there"], "there.py"),
        (["sensor", "door", "--folder", "file/x"], "file/x"),
        (["board", "green"], "--like"),
        (["board", "green", "--like", "UNIX"], "green"),
        (["board", "GREEN", "--like", "NONE"], "NONE"),
        (["board", "UNIX", "--like", "UNIX"], "described already"),
        (["board", "GREEN", "--like", "UNIX", "--folder", "file"], "file"),
        (["board", "THERE", "--like", "UNIX"], "THERE"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_exit_code_2(arguments, named, folder: Path, capsys):
    """Planted: "use letters" was said of ü, of names that are too long, and of words of Python."""
    (folder / "file").touch()
    (folder / "boards" / "THERE").mkdir(parents=True)
    (folder / "sensors").mkdir()
    kept = folder / "sensors" / "there.py"
    kept.write_text("mine")
    assert run(["new", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and named in error and "—" in error
    assert kept.read_text() == "mine"
    assert {file.name for file in (folder / "sensors").iterdir()} == {"there.py"}
