"""umqtt provision checks what it sends beforehand, always hides secrets, and writes all of it or nothing."""

from __future__ import annotations

import codecs
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cable import Cable
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from umqtt_broker.cli.authority import Authority
from umqtt_kit.device import Board, Configuration, find_ports
from umqtt_kit.device.configuration import check, read_configuration
from umqtt_kit.provision.values import Change, read_certificate, target
from umqtt_kit.provision.write import write
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError

# Each is unmistakable, so that it can be searched for in everything that was printed.
WIFI_SECRET, MQTT_SECRET = "wifi-Geheim-1", "mqtt-Geheim-2"
BROKER = "mqtt://127.0.0.1:1883"
VALUES = {
    "settings": {"device_id": "pump-7", "brokers": [BROKER]},
    "wifi": [{"ssid": "workshop", "password": WIFI_SECRET}],
    "mqtt": {"username": "pump-7", "password": MQTT_SECRET},
}


def private(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def on_board(port: str) -> tuple[dict, dict]:
    with Board(port, restart=False) as board:
        there = read_configuration(board)
    return there.settings or {}, there.secrets or {}


def certificate(folder: Path) -> Path:
    Authority(folder).create("fleet")
    return folder / "ca.pem"


def test_a_key_of_a_kind_that_boards_do_not_know_is_refused_by_name(tmp_path: Path):
    """Planted: it is written, and the board never connects."""
    key = ed25519.Ed25519PrivateKey.generate()
    file = tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KitError, match="knows no Ed25519"):
        read_certificate(file, "key")


def test_a_device_id_with_a_dot_is_warned_of(cable: Cable):
    """RabbitMQ makes levels of a topic of it: readings are acknowledged, and no collector gets them."""
    with cable.board(files={"settings.json": json.dumps({"device_id": "pump.7", "brokers": [BROKER]}).encode()}):
        answer = cable.umqtt("provision", "--set", "interval_ms=500")
        assert answer.code == 0 and "pump.7 has a dot: RabbitMQ" in answer.stderr, answer
        answer = cable.umqtt("doctor", "--json")
        (found,) = [one for one in answer.json["checks"] if one["name"] == "device id"]
        assert found["state"] == "warn" and found["text"].startswith("pump.7 has a dot")


def test_values_from_a_file_reach_the_board_and_no_secret_the_screen(cable: Cable, tmp_path: Path):
    with cable.board() as board:
        file = private(tmp_path / "pump.json", json.dumps(VALUES))
        answer = cable.umqtt("provision", "--from", file, "--json")
        assert (answer.code, answer.json["boards"][0]["device_id"]) == (0, "pump-7")
        settings, secrets = on_board(board.port)
        assert settings == {"device_id": "pump-7", "brokers": [BROKER], "wifi": ["workshop"]}
        assert secrets == {
            "wifi": {"workshop": WIFI_SECRET},
            "mqtt": {"username": "pump-7", "password": MQTT_SECRET},
        }
        again = cable.umqtt("provision", "--from", file, "--json")
        assert again.json["boards"][0]["changed"] == [], "what is there already is not written again"
        joined = cable.umqtt("provision", "--set", 'wifi=["barn"]')
        assert "joins barn without a password; if it has one: umqtt provision" in joined.stderr
        # Planted: records in CBOR are taken to be kept as numbers alone.
        shorter = cable.umqtt("provision", "--set", "wifi=null", "--set", 'encoding="cbor"')
        in_json, in_cbor = (float(one.stderr.split("room for ")[1].split()[0]) for one in (joined, shorter))
        assert in_cbor < in_json / 2, (in_json, in_cbor)
        assert cable.umqtt("provision", "--set", "encoding=null").code == 0
        changed = cable.umqtt("provision", "--set", "interval_ms=5000", "--json")
        assert changed.json["boards"][0]["changed"] == ["/settings.json"]
        shown = cable.umqtt("provision", "--show")
        assert "settings.interval_ms = 5000" in shown.stdout and '"workshop": "(set)"' in shown.stdout
        as_json = cable.umqtt("provision", "--show", "--json").json
        assert as_json["secrets"]["mqtt"] == {"username": "pump-7", "password": "(set)"}
        printed = "".join(part.stdout + part.stderr for part in (answer, again, changed, shown))
        printed += json.dumps(as_json)
        assert WIFI_SECRET not in printed and MQTT_SECRET not in printed
        assert "Geheim" not in repr(target(read_configuration_of(board.port), Change()))


def read_configuration_of(port: str):
    with Board(port, restart=False) as board:
        return read_configuration(board)


@pytest.mark.parametrize(
    ("settings", "secrets"),
    [
        ({}, {"mqtt": {"username": "pump-7", "password": [WIFI_SECRET], "auth": {"user": WIFI_SECRET}}}),
        ({}, {"mqtt": {"username": [WIFI_SECRET], "Passwort": WIFI_SECRET}, "tls": {"key": WIFI_SECRET}}),
        ({}, {"mqtt": [{"password": WIFI_SECRET}], "wifi": {"workshop": {"psk": WIFI_SECRET}}}),
        ({}, {"token": WIFI_SECRET, "api": {"value": WIFI_SECRET}}),
        ({"brokers": [f"mqtt://pump-7:{WIFI_SECRET}@host"], "wifi": {"workshop": WIFI_SECRET}}, {}),
        ({"mqtt": {"password": WIFI_SECRET}, "update_url": f"http://me:{WIFI_SECRET}@host/"}, {}),
        ({"sensors": [{"module": "scale", "api_key": WIFI_SECRET, "at": [{"Token": [WIFI_SECRET]}]}]}, {}),
        ({"sensors": [{"module": "scale", "at": {"url": f"http://me:{WIFI_SECRET}@host/"}}]}, {}),
    ],
)
def test_a_secret_is_shown_nowhere_it_may_have_been_put(cable: Cable, settings: dict, secrets: dict):
    files = {"settings.json": json.dumps(settings).encode(), "secrets.json": json.dumps(secrets).encode()}
    with cable.board(files=files):
        for form in ([], ["--json"]):
            shown = cable.umqtt("provision", "--show", *form)
            assert (shown.code, shown.stderr) == (0, "")
            assert "(set" in shown.stdout and "Geheim" not in shown.stdout, shown.stdout


def test_a_wrong_value_is_named_and_nothing_is_written(cable: Cable, tmp_path: Path):
    """Planted: a wrong key of the file was not named; JSON without its last bracket was taken for text."""
    with cable.board() as board:
        for values, named in (
            ({"settings": {"brokers": ["http://x"]}}, "brokers: address 1"),
            ({"settings": {"brokers": [BROKER], "interval": 5}}, "did you mean interval_ms"),
            ({"settings": {"brokers": ["mqtts://x"]}}, "tls.ca: is missing"),
            ({**VALUES, "wifi": [{"ssid": "workshop", "password": "short"}]}, "wifi.workshop"),
            ([], "must be an object with some of"),
            ({"setings": {}}, "'setings' is not known — known are: mqtt, settings, tls, wifi"),
            ({"tls": {"ca": "no-such-file"}}, "no-such-file"),
        ):
            answer = cable.umqtt("provision", "--from", private(tmp_path / "bad.json", json.dumps(values)))
            assert answer.code == 2, values
            assert named in answer.stderr
            assert len(answer.stderr.splitlines()) == 1
            assert "short" not in answer.stderr
        answer = cable.umqtt("provision", "--set", 'sensors=[{"module": "door", "pin": 14}')
        assert answer.code == 2 and "is not JSON" in answer.stderr, answer.stderr
        assert on_board(board.port) == ({}, {})


def test_a_file_with_secrets_that_others_may_read_is_refused(cable: Cable, tmp_path: Path):
    with cable.board():
        file = tmp_path / "pump.json"
        file.write_text(json.dumps(VALUES))
        file.chmod(0o640)
        answer = cable.umqtt("provision", "--from", str(file))
        assert (answer.code, f"chmod 600 {file}" in answer.stderr) == (2, True)


def test_a_broken_file_is_refused_without_showing_what_is_in_it(cable: Cable, tmp_path: Path):
    with cable.board():
        file = private(tmp_path / "broken.json", json.dumps(VALUES)[:-1])
        answer = cable.umqtt("provision", "--from", file)
        assert answer.code == 2 and "is not JSON (line 1)" in answer.stderr
        assert "Geheim" not in answer.stderr
        for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
            answer = cable.umqtt("provision", "--from", str(path))
            assert (answer.code, answer.stderr.count("\n")) == (2, 1) and f"{path}: {why}" in answer.stderr


@pytest.mark.parametrize(
    ("network", "wifi", "why"),
    [
        ("none", None, "has no network: nothing was sent — load that of RPI_PICO_W"),
        ("wired", ["workshop"], "has no Wi-Fi: nothing was sent — load that of RPI_PICO_W"),
        ("wired", None, None),
    ],
)
def test_an_image_without_a_network_is_told_before_anything_is_sent(
    cable: Cable, tmp_path: Path, network: str, wifi: list[str] | None, why: str | None
):
    """Planted: the image is not asked, or only whether it has sockets; only doctor, which sends nothing, reports
    it.
    """
    environment = {"UMQTT_BOARD_NETWORK": network, "UMQTT_BOARD_MACHINE": "Raspberry Pi Pico with RP2040"}
    settings = {"device_id": "pump-7", "brokers": [BROKER]}
    values = {"settings": settings, "wifi": [{"ssid": ssid, "password": WIFI_SECRET} for ssid in wifi or ()]}
    file = private(tmp_path / "pump.json", json.dumps(values))
    there = {"/settings.json": json.dumps({**settings, "wifi": wifi or []}).encode()}
    with cable.board(board="RPI_PICO_W", env=environment, files=there) as board:
        before = board_files(board)
        commands = [("provision", "--from", file), ("deploy", "--no-wait", "--board", "RPI_PICO_W")]
        for command in commands if why else commands[:1]:
            answer = cable.umqtt(*command)
            assert answer.code == (5 if why else 0), answer.stderr
            if why:
                assert why in answer.stderr and len(answer.stderr.splitlines()) == 1, answer.stderr
                assert board_files(board) == before
        if network == "none":
            found = cable.umqtt("doctor").stdout
            assert "fail  network: this image (Raspberry Pi Pico with RP2040) has no network\n" in found
            assert "try: load that of RPI_PICO_W: umqtt flash IMAGE" in found


@pytest.mark.parametrize("broker", ["mqtt://localhost:1883", "mqtt://127.0.0.1", "mqtt://[::1]:1884", "mqtt://0.0.0.0"])
def test_a_broker_that_is_the_board_itself_is_refused(
    cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str
):
    """By provision, deploy and doctor; on a virtual board it is this computer. Planted: it is written."""
    with cable.board(files={"settings.json": json.dumps({"device_id": "x", "brokers": [broker]}).encode()}):
        assert cable.umqtt("provision", "--set", f"brokers={broker}").code == 0
        monkeypatch.setattr("umqtt_kit.device.guess.own_address", lambda: "192.0.2.7")
        real = [replace(port, virtual=False) for port in find_ports()]
        monkeypatch.setattr(sys.modules["umqtt_kit.device.choose"], "find_ports", lambda: real)
        scheme, _, rest = broker.partition("://")
        port = rest[-5:] if rest[-5:].startswith(":1") else ""
        for command in (("provision", "--set", f"brokers={broker}"), ("deploy",), ("doctor",)):
            answer = cable.umqtt(*command)
            said = answer.stdout + answer.stderr
            assert answer.code == 5 and f"the broker {broker} is the board itself" in said, answer
            assert f"give {scheme}://192.0.2.7{port} if it is this computer" in said


def test_what_comes_over_the_cable_ends_the_trial_of_what_came_over_the_air(cable: Cable):
    settings = json.dumps({"device_id": "pump-7", "brokers": [BROKER]}).encode()
    with cable.board(files={"/settings.json": settings, "/settings.json.was": settings}) as board:
        assert cable.umqtt("provision", "--set", "brokers=mqtt://127.0.0.1:1884").code == 0
        assert "/settings.json.was" not in board_files(board)


def board_files(virtual: VirtualBoard) -> dict[str, int]:
    with Board(virtual.port, restart=False) as board:
        return board.list_files()


def test_the_ca_goes_along_and_the_settings_may_then_be_encrypted(cable: Cable, tmp_path: Path):
    ca = certificate(tmp_path / "authority")
    values = {"settings": {"brokers": ["mqtts://broker.example"]}, "tls": {"ca": str(ca)}}
    with cable.board() as board:
        answer = cable.umqtt("provision", "--from", private(tmp_path / "tls.json", json.dumps(values)), "--json")
        assert answer.json["boards"][0]["changed"] == ["/ca.pem", "/secrets.json", "/settings.json"], answer.stderr
        with Board(board.port, restart=False) as connected:
            assert connected.get("/ca.pem") == ca.read_bytes()
        assert on_board(board.port)[1] == {"tls": {"ca": "/ca.pem"}}


def test_at_every_step_settings_and_secrets_go_together(cable: Cable, monkeypatch: pytest.MonkeyPatch):
    class Interrupted(BaseException):
        pass

    old = Change({"brokers": [BROKER]}, [("home", "home-password")])
    new = Change({"brokers": ["mqtts://broker.example"]}, [("work", "work-password")], {}, {"ca": b"-----BEGIN"})
    puts = Board.put
    limit = 0
    with cable.board() as virtual, Board(virtual.port, restart=False) as board:
        ended = False
        while not ended:
            board.remove(["/ca.pem"])
            write(board, target(Configuration(None, None), old))
            done = 0

            def put(self: Board, path: str, data: bytes, allowed: int = limit) -> None:
                nonlocal done
                if done == allowed:
                    raise Interrupted
                puts(self, path, data)
                done += 1

            with monkeypatch.context() as patch:
                patch.setattr(Board, "put", put)
                try:
                    write(board, target(read_configuration(board), new))
                    ended = True
                except Interrupted:
                    limit += 1
            there = read_configuration(board)
            settings, secrets = check(there.settings, there.secrets)
            assert set(settings["wifi"]) <= set(secrets["wifi"]), f"a network without its password after {limit} writes"
            assert settings["wifi"] in (["home"], ["work"])
        assert list(secrets["wifi"]) == ["work"], "the passwords of networks that are gone do not stay"
        assert limit == 4


def test_a_person_is_asked_and_passwords_are_not_shown(cable: Cable, tmp_path: Path):
    with cable.board() as board:
        answers = [
            ("Device id", "pump 7"),  # refused: it contains a space
            ("only letters, digits", None),
            ("Device id", "pump-7"),
            ("Wi-Fi network 1", "workshop"),
            ("Password of workshop", "short"),  # refused: too short
            ("8 to 63 characters", None),
            ("Password of workshop", WIFI_SECRET),
            ("Wi-Fi network 2", ""),
            ("Broker 1", BROKER),
            ("Broker 2", ""),
            ("User name", "pump-7"),
            ("Password of pump-7", MQTT_SECRET),
            ("I2C with scl 22 and sda 21: nothing answers", None),
            ("Sensor 1", "?"),
            ("hx711, ina219", None),
            ("Sensor 1", "dht2 pin=4"),
            ("did you mean dht22?", None),
            ("Sensor 1", "dht22 pin=onewire name=cellar"),
            ("Sensor 2", ""),
        ]
        shown, code = _typed(answers)
        assert code == 0, shown
        assert "Geheim" not in shown and "short" not in shown
        settings, secrets = on_board(board.port)
        dht = {"module": "dht22", "pin": 4, "name": "cellar"}
        assert settings == {"device_id": "pump-7", "wifi": ["workshop"], "brokers": [BROKER], "sensors": [dht]}
        assert secrets == {"wifi": {"workshop": WIFI_SECRET}, "mqtt": VALUES["mqtt"]}
        # Enter keeps everything, including the passwords.
        kept = [(question, "") for question, answer in answers if answer and answer not in ("pump 7", "short")]
        questions = [*kept[:3], ("Wi-Fi network 2", ""), ("Broker 1", ""), ("Broker 2", ""), *kept[4:6]]
        questions += [("Sensor 1 [dht22 pin=4 ", ""), ("Sensor 2", "")]
        shown, code = _typed(questions)
        assert code == 0, shown
        assert on_board(board.port) == (settings, secrets)


def test_a_cloud_asks_only_for_what_it_needs(cable: Cable, tmp_path: Path):
    """Planted: the user name is asked for at Azure; the topics of the cloud before stay; the key is the password."""
    certificate(tmp_path / "authority")
    ca = str(tmp_path / "authority" / "ca.pem")
    with cable.board() as board:
        answers = [("Device id", "pump-7"), ("Wi-Fi network 1", "-"), ("Address of Azure IoT Hub", "h.example")]
        answers += [("Primary key of the device", "c2VjcmV0IGtleSBvZiBwdW1wLTc=")]
        answers += [("CA certificate", ca), ("Sensor 1", "-")]
        shown, code = _typed(list(answers), "--cloud", "azure")
        assert code == 0 and "c2Vj" not in shown, shown
        settings, secrets = on_board(board.port)
        assert settings["brokers"] == ["mqtts://h.example"] and "cmd" in settings["topics"]
        username = "h.example/{device_id}/?api-version=2021-04-12"
        assert secrets["mqtt"] == {"username": username, "sas_key": "c2VjcmV0IGtleSBvZiBwdW1wLTc="}
        values = {"settings": {"brokers": ["mqtts://tb.example"]}, "mqtt": {"password": "A1_TOKEN"}}
        file = private(tmp_path / "tb.json", json.dumps(values))
        answer = cable.umqtt("provision", "--cloud", "thingsboard", "--from", file)
        assert answer.code == 0, answer
        settings, secrets = on_board(board.port)
        assert settings["topics"]["telemetry"][0] == "v1/devices/me/telemetry"
        assert secrets["mqtt"] == {"username": "A1_TOKEN"}
        file = private(tmp_path / "h.json", json.dumps({"mqtt": {"username": "pump-7", "password": MQTT_SECRET}}))
        assert cable.umqtt("provision", "--cloud", "hivemq", "--from", file).code == 0
        settings, secrets = on_board(board.port)
        assert "topics" not in settings and secrets["mqtt"] == VALUES["mqtt"]
        assert cable.umqtt("provision", "--cloud", "azure", "--set", "interval_ms=500").code == 2
        bad = private(tmp_path / "bad.json", json.dumps({"mqtt": {"password": "short"}}))
        assert "base64" in cable.umqtt("provision", "--cloud", "azure", "--from", bad).stderr


@pytest.mark.parametrize("odd", [[], [["x"]], 5, None, {"a": []}], ids=str)
def test_what_is_odd_on_a_board_is_not_offered_and_ends_in_one_line_at_most(cable: Cable, tmp_path: Path, odd: object):
    settings = {"device_id": odd, "wifi": odd, "brokers": odd}
    secrets = {"wifi": odd, "mqtt": {"username": odd, "password": odd}, "tls": odd}
    files = {"settings.json": json.dumps(settings).encode(), "secrets.json": json.dumps(secrets).encode()}
    answers = [
        ("Device id", ""), ("Wi-Fi network 1", "-"), ("Broker 1", BROKER), ("Broker 2", "-"), ("User name", "-"),
        ("Sensor 1", "-"),
    ]  # fmt: skip
    with cable.board(files=files) as board:
        shown, code = _typed(list(answers))
        # Written, or refused because of something that was not asked about.
        assert code == 0 or (code == 2 and "nothing was written" in shown), shown
        answer = cable.umqtt("provision", "--from", private(tmp_path / "pump.json", json.dumps(VALUES)))
        assert answer.code == 0 or (answer.code == 2 and answer.stderr.count("\n") == 1), answer
        assert cable.umqtt("provision", "--show").code == 0
        assert code or on_board(board.port)[0]["brokers"] == [BROKER]


def _typed(answers: list[tuple[str, str | None]], *options: str) -> tuple[str, int]:
    """Run `umqtt provision` on a terminal; type each answer once its question is shown."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "umqtt_cli", "provision", *options]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        shown, searched = "", 0
        text = codecs.getincrementaldecoder("utf-8")()
        for question, answer in answers:
            while question not in shown[searched:]:
                shown += text.decode(os.read(master, 4096))
            searched = shown.index(question, searched) + len(question)
            if answer is not None:
                # The question ends with its colon; only then is the echo off.
                while ": " not in shown[searched:]:
                    shown += text.decode(os.read(master, 4096))
                searched = shown.index(": ", searched) + 2
                os.write(master, answer.encode() + b"\n")
        while True:
            try:
                shown += text.decode(os.read(master, 4096))
            except OSError:  # the terminal's last user has ended
                break
        code = process.wait(WAIT_LIMIT_S)
    os.close(master)
    return shown, code


def test_without_a_terminal_nobody_is_asked(cable: Cable):
    with cable.board():
        done = subprocess.run(
            [sys.executable, "-m", "umqtt_cli", "provision"], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "there is no terminal to ask on — use --from" in done.stderr


def test_brokers_are_given_as_text_and_the_board_by_its_name(cable: Cable):
    with cable.board() as one:
        assert cable.umqtt("provision", "--set", "brokers=mqtt://a mqtt://b", "--board", "UNIX").code == 0
        assert on_board(one.port)[0] == {"brokers": ["mqtt://a", "mqtt://b"], "board": "UNIX"}
        answer = cable.umqtt("provision", "--set", "brokers=mqtt://c", "--board", "PDP_11")
        assert answer.code == 2 and "there is no board 'PDP_11' — known are: ESP32_GENERIC" in answer.stderr
        assert on_board(one.port)[0]["brokers"] == ["mqtt://a", "mqtt://b"]


@pytest.mark.parametrize(("name", "button"), [("UNIX", None), ("ESP32_GENERIC_C3", 9), ("RPI_PICO_W", "bootsel")])
def test_portal_gives_a_board_a_code_that_is_shown_once(cable: Cable, name: str, button: object):
    """Planted: the code of the previous run is written again."""
    with cable.board(board=name) as board:
        first = cable.umqtt("provision", "--portal", "--json").json
        told = cable.umqtt("provision", "--portal")
        with Board(board.port, restart=False) as there:
            written = json.loads(there.get("/portal.json") or b"")
            unique_id = there.info().unique_id or ""
        assert written["button"] == button and written["code"] != first["code"]
        assert f"Wi-Fi umqtt-{unique_id[-6:]}, password and code {written['code']}, page http://" in told.stdout
        assert (first["network"], told.code) == (f"umqtt-{unique_id[-6:]}", 0)
        assert written["code"] not in cable.umqtt("provision", "--show", "--interrupt").stdout


def test_portal_is_refused_on_an_image_without_wifi(cable: Cable):
    with cable.board(env={"UMQTT_BOARD_NETWORK": "wired"}) as board:
        answer = cable.umqtt("provision", "--portal")
        assert answer.code == 5 and "has no Wi-Fi: nothing was sent" in answer.stderr
        with Board(board.port, restart=False) as there:
            assert there.get("/portal.json") is None
