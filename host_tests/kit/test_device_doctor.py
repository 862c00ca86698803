"""umqtt doctor finds each fault and says what to do; faults decide the exit code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from cable import Answer, Cable, broker, deployed
from kit_command import umqtt_here
from release_web import https, serving
from umqtt_broker.cli.authority import Authority
from umqtt_kit.data import firmware_folder
from umqtt_kit.device import Board
from umqtt_kit.doctor.checks import certificates
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import make_release
from umqtt_testkit.waiting import eventually


def checks(answer: Answer) -> dict[str, dict]:
    found = {check["name"]: check for check in answer.json["checks"]}
    for check in found.values():
        assert check["state"] == "ok" or check["remedy"], f"nothing to do about it: {check}"
    assert answer.json["ok"] == (answer.code == 0)
    return found


def test_a_fresh_board_lacks_application_and_settings(cable: Cable):
    with cable.board():
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        assert answer.code == 5
        assert {name for name, check in found.items() if check["state"] == "ok"} == {
            "port", "micropython", "network", "flash", "heap", "clock",
        }  # fmt: skip
        assert found["application"]["remedy"] == "umqtt deploy"
        assert found["settings"]["remedy"] == "umqtt provision"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"import machine\nmachine.soft_reset()", "did the board restart meanwhile?"),
        (b"1/0", "ZeroDivisionError"),
    ],
    ids=["restarts", "crashes"],
)
def test_a_board_that_restarts_or_crashes_while_it_is_asked_is_a_finding(cable: Cable, program: bytes, said: str):
    # The board imports this when it is asked whether it reaches its broker.
    with cable.board(files={"settings.json": b'{"brokers": ["mqtt://127.0.0.1:1"]}', "socket.py": program}):
        answer = cable.umqtt("doctor", "--json")
    assert (answer.code, answer.stderr) == (5, "")
    assert said in checks(answer)["board"]["text"]


_FILL = """
number = 0
for size in (65536, 4096, 64):
    try:
        while True:
            with open("/fill%d" % number, "wb") as file: file.write(bytes(size))
            number += 1
    except OSError:
        number += 1
"""


def test_a_flash_that_is_full_is_said_to_be_full(cable: Cable):
    # With a deployed firmware, littlefs counts more blocks than exist.
    with cable.board(files={**deployed(), "settings.json": b'{"brokers": ["mqtt://127.0.0.1:1"]}'}) as board:
        with Board(board.port) as connected:
            connected.exec(_FILL, 60)
            assert connected.info().flash_free < 8192
        # A start takes long while littlefs searches for space in vain, and nothing answers meanwhile.
        answer = eventually(
            lambda: "flash" in checks(asked := cable.umqtt("doctor", "--json")) and asked, "the firmware answers"
        )
        found = checks(answer)["flash"]
        assert (answer.code, found["state"], found["text"][1:]) == (5, "fail", " of 2,048 KB free")
        answer = cable.umqtt("provision", "--set", "interval_ms=500")
        assert (answer.code, answer.stderr.count("\n")) == (5, 1)
        assert "its flash is full" in answer.stderr


def test_a_port_that_does_not_answer_ends_it_with_3(cable: Cable, tmp_path: Path):
    port = tmp_path / "ttyUSB0"
    port.touch()
    answer = cable.umqtt("doctor", "--json", "--device", str(port))
    assert answer.code == 3
    assert list(checks(answer)) == ["port"]


def test_wifi_and_broker_are_tried_from_the_board_and_broker_from_here(cable: Cable, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("umqtt_kit.doctor.checks._JOIN_WITHIN_MS", 300)
    with (
        broker(tmp_path) as port,
        socket.socket() as refused,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server6,
    ):
        refused.bind(("127.0.0.1", 0))  # not listening: connections are refused
        closed = f"mqtt://127.0.0.1:{refused.getsockname()[1]}"
        open6 = f"mqtt://[::1]:{server6.getsockname()[1]}"
        settings = {"brokers": [f"mqtt://127.0.0.1:{port}", closed, open6], "wifi": ["workshop"]}
        secrets = {"wifi": {"workshop": "right-password"}}
        files = {"settings.json": json.dumps(settings).encode(), "secrets.json": json.dumps(secrets).encode()}
        with cable.board(files=files) as board:
            board.hooks(networks={"workshop": "right-password", "other": ""})
            answer = cable.umqtt("doctor", "--json")
            found = checks(answer)
            assert found["wifi"]["text"] == "workshop, address 127.0.0.1"
            assert found["wifi"]["state"] == "ok"
            assert found[f"mqtt://127.0.0.1:{port} from the board"]["state"] == "ok"
            assert "no connection" in found[f"{closed} from the board"]["text"]
            assert found[f"{open6} from the board"]["state"] == "ok"
            assert found["broker from here"]["state"] == "ok"

            board.hooks(networks={"workshop": "another-password"})
            answer = cable.umqtt("doctor", "--json")
            found = checks(answer)
            assert found["wifi"]["state"] == "fail"
            assert "workshop: the password is wrong" in found["wifi"]["text"]
            assert not any("from the board" in name for name in found), "what depends on it is left out"
            assert "right-password" not in answer.stdout + answer.stderr

            board.hooks(networks={"other": ""})
            found = checks(cable.umqtt("doctor", "--json"))
            assert "in range are: other" in found["wifi"]["text"]
            assert "workshop: it is not in range" in found["wifi"]["text"]


def test_certificates_that_expire_soon_are_warned_of(tmp_path: Path):
    """Those of the board, and the broker's. Planted: only the board's."""
    authority = Authority(tmp_path)
    authority.create("fleet")
    tls = {}
    for days in (20, 90):
        authority.issue_broker(["127.0.0.1"], days, force=True)
        folder = tmp_path / "broker"
        with serving(make_release("0.2.0", {}), https(folder / "cert.pem", folder / "key.pem")) as url:
            address = url.replace("https", "mqtts").rstrip("/")
            (tls[days],) = certificates(Access((address,), ca=(tmp_path / "ca.pem").read_bytes()))
    assert (tls[20].state, tls[90].state) == ("warn", "ok") and tls[20].remedy
    assert list(certificates(Access(("mqtt://127.0.0.1:1",)))) == []
    # Planted: a damaged file ends doctor with a traceback.
    damaged = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (unreadable,) = certificates(Access(("mqtt://127.0.0.1:1",), ca=damaged))
    assert unreadable.state == "warn"


def test_only_the_network_at_fault_is_exit_code_4_and_files_at_fault_5(cable: Cable):
    with cable.board(files={**deployed(), "settings.json": b'{"brokers": ["mqtt://127.0.0.1:1"]}'}) as board:
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        assert answer.code == 4
        assert "files as deployed" in found["application"]["text"]
        with Board(board.port) as connected:
            connected.put("/app/ntp.mpy", b"damaged")
        answer = cable.umqtt("doctor", "--json")
        assert answer.code == 5
        assert "/app/ntp.mpy" in checks(answer)["application"]["text"]
        with Board(board.port) as connected:
            connected.put("/settings.json", b'{"brokers": ["mqtt://127.0.0.1:1"], "interval": 1}')
        found = checks(cable.umqtt("doctor", "--json"))
        assert "did you mean interval_ms" in found["settings"]["text"]
        shown = cable.umqtt("doctor")
        assert "fail  settings" in shown.stdout and "try: umqtt provision" in shown.stdout


_SENSORS = [
    {"module": "nowhere"},
    {"module": "chip", "wrong": 5},
    {"module": "door", "name": "front"},
]


def _files(port: int, **more: object) -> dict[str, bytes]:
    settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 100, **more}
    return {"settings.json": json.dumps(settings).encode()}


@pytest.mark.parametrize("runs", [True, False], ids=["beside the firmware", "at the prompt"])
def test_a_sensor_that_is_missing_or_given_a_wrong_argument_is_a_failure(cable: Cable, tmp_path: Path, runs: bool):
    """Planted: only the settings are checked, and the sensors they name are not tried."""
    door = {"/sensors/door.py": b"class Sensor:\n    def read(self): return {'open': 1}\n"}
    with (
        broker(tmp_path) as port,
        cable.board(files={**deployed(), **door, **_files(port, sensors=_SENSORS)}) as board,
    ):
        board.wait_for("sensor chip")
        if not runs:
            with Board(board.port, restart=False):
                pass
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        assert answer.code == 5
        assert "no module app/sensors/nowhere.py" in found["sensor nowhere"]["text"]
        assert "umqtt deploy --sensors" in found["sensor nowhere"]["remedy"]
        assert "wrong" in found["sensor chip"]["text"] and "sensors=" in found["sensor chip"]["remedy"]
        assert found["sensor front"]["state"] == "ok"


@pytest.mark.parametrize("runs", [True, False], ids=["beside the firmware", "at the prompt"])
def test_a_wrong_mqtt_password_is_a_failure_of_the_board_and_no_remark(cable: Cable, tmp_path: Path, runs: bool):
    """Planted: a refusal of the board's credentials on this computer is only a warning."""
    made = umqtt_here(tmp_path, "passwd", "passwords", "pump-7", "--stdin", "--iterations", "10", given="right\n")
    assert made.code == 0, made.stderr
    secrets = b'{"mqtt": {"username": "pump-7", "password": "wrong-horse"}}'
    lines = ("allow_anonymous false", f"password_file {tmp_path}/passwords")
    firmware = deployed() if runs else {}
    with (
        broker(tmp_path, *lines) as port,
        cable.board(files={**firmware, **_files(port), "secrets.json": secrets}) as board,
    ):
        if runs:
            board.wait_for("broker: ")
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        name = "broker from the board" if runs else "broker from here"
        assert found[name]["state"] == "fail" and "wrong user name or password" in found[name]["text"], found
        assert answer.code == (4 if runs else 5), "the prompt has no application"
        assert "wrong-horse" not in answer.stdout + answer.stderr


def test_a_hidden_network_that_can_be_joined_is_no_warning(cable: Cable):
    """Planted: a network that no scan shows always gives a warning."""
    files = {
        "settings.json": b'{"brokers": ["mqtt://127.0.0.1:1"], "wifi": ["hidden"]}',
        "secrets.json": b'{"wifi": {"hidden": "right-password"}}',
    }
    with cable.board(files=files) as board:
        board.hooks(networks={"hidden": "right-password"}, hidden=["hidden"])
        found = checks(cable.umqtt("doctor", "--json"))
        assert [check["state"] for name, check in found.items() if "wifi" in name] == ["ok"]


@pytest.mark.parametrize("reset", [False, True], ids=["between two starts", "at the prompt"])
def test_a_crash_loop_is_a_failure_with_the_traceback_from_flash(cable: Cable, tmp_path: Path, reset: bool):
    """Planted: failed starts are checked only after they have led to safe mode; not after a soft reset."""
    with broker(tmp_path) as port, cable.board(files={**deployed(), **_files(port), "/main.py": _CRASHES}) as board:
        board.wait_for("Ctrl-C for the prompt")
        if reset:
            with Board(board.port, restart=False):
                pass
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        assert answer.code == 5 and found["start"]["state"] == "fail"
        assert found["start"]["text"].startswith("1 starts in a row have failed: ValueError: the planted one")
        assert any("main.py" in line for line in found["start"]["more"])
        shown = cable.umqtt("doctor").stdout
        assert "Traceback (most recent call last):" in shown and "ValueError: the planted one" in shown


def test_records_of_starts_that_cannot_be_read_are_a_warning(cable: Cable, tmp_path: Path):
    """Planted: any failure of the check itself counts as a board without failed starts."""
    other = dict.fromkeys(("/boot_choice.py", "/postmortem.py", "/startup.py"), b"now = None")
    with broker(tmp_path) as port, cable.board(files={**_files(port), **other}) as board:
        with Board(board.port, restart=False):
            pass
        found = checks(cable.umqtt("doctor", "--json"))
        assert found["start"]["state"] == "warn" and "AttributeError" in found["start"]["text"]


def test_the_traceback_of_a_start_names_the_lines_of_the_readable_firmware(cable: Cable):
    """Planted: it is shown as the board gave it, with the short names of the generated modules."""
    with cable.board() as board:
        assert cable.umqtt("deploy", "--no-wait", "--board", "UNIX").code == 0
        board.wait_for("Ctrl-C for the prompt")
        told = checks(cable.umqtt("doctor", "--json"))["start"]["more"]
    source = (firmware_folder() / "app" / "build.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(source) if '"settings_files", "load"' in text)
    assert f'  File "app/build.py", line {line}, in make' in told, told
    assert not any('File "app"' in text for text in told), told


@pytest.mark.parametrize(("heap", "ends_with"), [("64K", ">>> "), ("80K", "Ctrl-C for the prompt")])
def test_a_heap_that_is_too_small_for_the_firmware_is_what_deploy_and_doctor_say(
    cable: Cable, tmp_path: Path, heap: str, ends_with: str
):
    """Planted: "see: umqtt doctor", where the port fails and "correct that, then: umqtt deploy" is the remedy."""
    with broker(tmp_path) as port, cable.board(files=_files(port), heap=heap) as board:
        answer = cable.umqtt("deploy", "--board", "UNIX")
        assert (answer.code, answer.stderr.count("\n")) == (5, 1), answer
        assert "MemoryError" in answer.stderr and "the firmware needs 96 KB" in answer.stderr
        board.wait_for(ends_with)
        found = checks(cable.umqtt("doctor", "--json"))
        assert "port" not in found or found["port"]["state"] == "ok"
        # Whether doctor itself has enough heap depends on where the firmware left gaps.
        told = [found[check] for check in ("heap", "start") if "MemoryError" in found.get(check, {"text": ""})["text"]]
        assert told and all("the firmware needs 96 KB" in one["remedy"] for one in told), found


_CRASHES = b"""
try:
    __import__('boot_choice').start()
    raise ValueError("the planted one")
except BaseException as error:
    import postmortem
    postmortem.handle(error)
    raise
"""


def test_the_files_of_another_board_are_a_failure_and_refused_by_deploy(cable: Cable, tmp_path: Path):
    """Planted: the board named in deployed.json, or by --board, is believed."""
    with broker(tmp_path) as port, cable.board("pico", board="RPI_PICO_W", files=_files(port)) as board:
        answer = cable.umqtt("deploy", "--no-wait", "--board", "ESP32_GENERIC")
        assert (answer.code, answer.stderr.count("\n")) == (5, 1)
        assert "ESP32_GENERIC has the chip ESP32" in answer.stderr and "--board RPI_PICO_W" in answer.stderr
        assert cable.umqtt("deploy", "--no-wait").code == 0
        with Board(board.port) as connected:
            record = connected.get("/deployed.json")
            assert record is not None
            connected.put("/deployed.json", record.replace(b"RPI_PICO_W", b"ESP32_GENERIC_S3"))
        answer = cable.umqtt("doctor", "--json")
        found = checks(answer)
        assert answer.code == 5
        assert "ESP32_GENERIC_S3 has the chip ESP32-S3" in found["application"]["text"]
        assert "--board RPI_PICO_W" in found["application"]["remedy"]
