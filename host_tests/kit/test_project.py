"""umqtt.toml sets defaults of options, and its credentials go only to its own broker; the shell completes names."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest
from cable import broker
from click.shell_completion import ShellComplete
from live_device import PlayedDevice
from umqtt_kit import mqtt, project
from umqtt_kit.__main__ import umqtt as cli
from umqtt_kit.keys import Keys
from umqtt_testkit import registry
from umqtt_testkit.ports import reserved_port

pytestmark = pytest.mark.tier(1)

_BROKER = {"broker", "username", "mqtt_version", "password_file", "ca", "cert", "key"}
_ALL = {key: f"the {key}" for key in project.KEYS}
# The keys that each command takes from the file.
_TAKEN = {
    "devices": set(), "flash": {"device", "board"}, "provision": {"device", "board"},
    "deploy": {"device", "board", "sensors"}, "doctor": {"device", *_BROKER}, "logs": {"device", *_BROKER},
    "shell": {"device"}, "serial": {"broker", "ca"},
    "board": {"board"}, "demo": set(), "fleet": _BROKER, "new": set(), "size": set(),
    "cmd": _BROKER, "settings": _BROKER, "keys": {"device", *_BROKER}, "ota": {"fleet", "sensors", *_BROKER},
    "pub": _BROKER, "sub": _BROKER,
    "broker": set(), "brokers": _BROKER, "certs": set(), "passwd": set(), "store": set(),
    "collect": set(), "spool": set(), "ingest": set(), "alerts": set(), "tables": set(), "report": set(),
}  # fmt: skip


@pytest.mark.parametrize("name", _TAKEN)
def test_a_command_takes_those_keys_that_are_its_options(name):
    """Planted: `umqtt demo --devices` takes the key device; `umqtt keys rotate` takes none."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    found = project.defaults_of(command, _ALL)
    parts = found.values() if isinstance(command, click.Group) else [found]
    values = [value for part in parts for value in part.values()]
    assert {value if isinstance(value, str) else value[0] for value in values} == {_ALL[key] for key in _TAKEN[name]}


def test_every_command_is_in_the_table():
    assert set(_TAKEN) == set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("broker = mqtt", "not TOML"),
        ("borker = 'mqtt://a'", "'borker'"),
        ("password = 'secret-horse'", "password_file"),
        ("broker = 5", "broker"),
        ("broker = ''", "broker"),
        ("\udcff", "not TOML"),
        ("broker = " + "[" * 5000, "not TOML"),
        ('password = "secret-horse\\u0000"', "holds a character"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_and_exit_code_2(umqtt, tmp_path, text, named):
    (tmp_path / "umqtt.toml").write_bytes(os.fsencode(text))
    ended = umqtt("cmd", "pump-7", "ping")
    assert ended.code == 2
    error = ended.only_error()
    assert named in error and "umqtt.toml" in error and "—" in error and "secret-horse" not in error


def test_a_file_of_another_user_is_not_followed(umqtt, tmp_path, monkeypatch):
    """Planted: the file's owner is not checked."""
    (tmp_path / "umqtt.toml").write_text("broker = 'mqtt://127.0.0.1:1'")
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 4711)
    if os.stat(tmp_path).st_uid == 0:
        os.chown(tmp_path / "umqtt.toml", 4712, -1)
    assert "another user" in umqtt("cmd", "pump-7", "ping").only_error()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Provide the arguments of make_access(); nothing is connected."""
    calls: list[tuple[Any, ...]] = []

    def make_access(*given: Any) -> mqtt.Access:
        calls.append(given)
        raise mqtt.KitError("asked — enough", 4)

    monkeypatch.setattr(mqtt, "make_access", make_access)
    return calls


@pytest.mark.parametrize(
    ("given", "environment", "broker_url", "username"),
    [
        ([], {}, "mqtt://project:1", "owner"),
        ([], {"UMQTT_USERNAME": "me"}, "mqtt://project:1", "me"),
        (["--broker", "mqtt://typed:1"], {}, "mqtt://typed:1", None),
        (["--broker", "mqtt://typed:1", "--username", "me"], {}, "mqtt://typed:1", "me"),
        ([], {"UMQTT_BROKER": "mqtt://set:1"}, "mqtt://set:1", None),
        ([], {"UMQTT_BROKER": "mqtt://set:1 mqtt://set:2"}, "mqtt://set:1 mqtt://set:2", None),
        (["--broker", "mqtt://typed:1", "--broker", "mqtt://typed:2"], {}, "mqtt://typed:1 mqtt://typed:2", None),
    ],
)
def test_the_command_line_comes_first_and_credentials_go_to_the_files_own_broker(
    umqtt, tmp_path, asked, given, environment, broker_url, username
):
    """Planted: the user name, the CA and the version of the file go to any broker given on the command line."""
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "ca.pem").write_text("")
    (tmp_path / "umqtt.toml").write_text("broker = 'mqtt://project:1'\nusername = 'owner'\nca = 'certs/ca.pem'\n"
                                         "mqtt_version = '5'\n")  # fmt: skip
    umqtt("cmd", "pump-7", "ping", *given, env=environment)
    ((found_broker, found_username, _, ca, _, _, _, version),) = asked
    assert version == ("5" if broker_url == "mqtt://project:1" else "3.1.1")
    assert (" ".join(found_broker), found_username) == (broker_url, username)
    assert ca == (folder / "ca.pem" if broker_url == "mqtt://project:1" else None)


def test_a_list_of_brokers_is_all_of_them(umqtt, tmp_path, asked):
    (tmp_path / "umqtt.toml").write_text("broker = ['mqtt://one:1', 'mqtt://two:1']\nusername = 'owner'\n")
    umqtt("cmd", "pump-7", "ping")
    assert asked[0][:2] == (("mqtt://one:1", "mqtt://two:1"), "owner")


def test_the_nearest_file_above_counts_and_its_paths_are_its_own(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "umqtt.toml").write_text("broker = 'mqtt://outer'")
    (tmp_path / "a" / "umqtt.toml").write_text("ca = 'ca.pem'\nfleet = 'pump-*'\nsensors = 'sensors'")
    assert project.read_project(inner) == {
        "ca": str(tmp_path / "a" / "ca.pem"), "fleet": "pump-*", "sensors": str(tmp_path / "a" / "sensors")
    }  # fmt: skip
    (tmp_path / "a" / "pump-*").touch()
    assert project.read_project(inner)["fleet"] == str(tmp_path / "a" / "pump-*")


def test_the_keys_lie_beside_the_file_that_is_found(tmp_path, monkeypatch):
    """Planted: they are looked for in the current folder, where a project's other folders have none."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv("UMQTT_KEYS", raising=False)
    assert Keys().file.absolute() == inner / "keys.json"
    (tmp_path / "umqtt.toml").write_text("")
    key = Keys().offer("pump-7")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "keys.json", "umqtt.toml"]
    monkeypatch.chdir(tmp_path)
    assert Keys().read()["pump-7"]["key"] == key
    monkeypatch.setenv("UMQTT_KEYS", "a/other.json")
    assert Keys().read() == {}


def _completed(*words: str) -> list[str]:
    *given, incomplete = words
    return [
        item.value for item in ShellComplete(cli, {}, "umqtt", "_UMQTT_COMPLETE").get_completions(given, incomplete)
    ]


def test_the_shell_completes_boards_ports_and_device_ids(tmp_path, monkeypatch):
    """Planted: device ids are asked of the default broker, not of the one in umqtt.toml."""
    monkeypatch.chdir(tmp_path)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("serial.tools.list_ports.comports", list)
    assert _completed("deploy", "--board", "RPI") == ["RPI_PICO2_W", "RPI_PICO_W"]
    with registry.registered("bench-7", "/dev/null", board="UNIX", image="x"):
        assert _completed("logs", "-d", "be") == ["bench-7"]
    (tmp_path / "umqtt.toml").write_text(f"broker = 'mqtt://127.0.0.1:{reserved_port()}'")
    assert _completed("ota", "pu") == []  # no broker is there: no error is shown
    with broker(tmp_path) as port:
        (tmp_path / "umqtt.toml").write_text(f"broker = 'mqtt://127.0.0.1:{port}'")
        device = PlayedDevice(port, "pump-7", lambda command: [])
        device.say("status", {"online": True}, retain=True)
        assert _completed("ota", "pu") == _completed("cmd", "") == ["pump-7"]
        device.sleep()
