"""umqtt.toml sets defaults of options once it is allowed; no credentials go to a broker that they are not for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from terminals import terminal
from umqtt_kit import mqtt
from umqtt_kit.keys import Keys

from umqtt_cli import project
from umqtt_cli.__main__ import umqtt as cli

pytestmark = pytest.mark.tier(1)

_BROKER = {"broker", "username", "mqtt_version", "password_file", "ca", "cert", "key"}
_ALL = {key: f"the {key}" for key in project.KEYS}
# The keys that each command takes from the file.
_TAKEN = {
    "devices": set(), "flash": {"device", "board"}, "provision": {"device", "board"},
    "deploy": {"device", "board", "sensors"}, "doctor": {"device", *_BROKER}, "logs": {"device", *_BROKER},
    "outbox": {"device"}, "shell": {"device"}, "serial": {"broker", "ca"}, "allow": set(),
    "board": {"board"}, "demo": set(), "new": set(), "prove": set(), "size": set(),
    "cmd": _BROKER, "settings": _BROKER, "keys": {"device", *_BROKER}, "ota": {"fleet", "sensors", *_BROKER},
    "pub": _BROKER, "sub": _BROKER,
    "broker": set(), "brokers": _BROKER, "certs": set(), "passwd": set(), "store": set(),
    "collect": set(), "spool": set(), "decoders": set(), "decode": set(), "sparkplug": _BROKER,
    "ingest": set(), "alerts": set(), "tables": set(), "report": set(), "console": _BROKER,
}  # fmt: skip


def write_project(folder: Path, text: str) -> Path:
    """Write a umqtt.toml and allow it."""
    file = folder / project.FILE
    file.write_text(text)
    project.read_project(folder).allow()
    return file


@pytest.mark.parametrize("name", _TAKEN)
def test_a_command_takes_those_keys_that_are_its_options(name):
    """Planted: `umqtt demo --devices` takes the key device; `umqtt keys rotate` takes none."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    found = project.defaults_of(command, _ALL)
    parts = found.values() if isinstance(command, click.Group) else [found]
    values = [value() for part in parts for value in part.values()]
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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Provide the arguments of make_access(); nothing is connected."""
    calls: list[dict[str, Any]] = []

    def make_access(brokers: tuple[str, ...], **given: Any) -> mqtt.Access:
        calls.append({"brokers": brokers, **given, "environment": dict(given["environment"])})
        raise mqtt.KitError("asked — enough", 4)

    monkeypatch.setattr(mqtt, "make_access", make_access)
    return calls


@pytest.mark.parametrize(
    ("given", "environment", "broker_url", "username"),
    [
        ([], {}, "mqtt://project:1", "owner"),
        ([], {"UMQTT_USERNAME": "me"}, "mqtt://project:1", "owner"),
        (["--username", "me"], {}, "mqtt://project:1", "me"),
        (["--broker", "mqtt://project:1"], {"UMQTT_USERNAME": "me"}, "mqtt://project:1", "me"),
        (["--broker", "mqtt://typed:1"], {}, "mqtt://typed:1", None),
        (["--broker", "mqtt://typed:1"], {"UMQTT_USERNAME": "me"}, "mqtt://typed:1", "me"),
        (["--broker", "mqtt://typed:1", "--username", "me"], {}, "mqtt://typed:1", "me"),
        ([], {"UMQTT_BROKER": "mqtt://set:1"}, "mqtt://set:1", None),
        ([], {"UMQTT_BROKER": "mqtt://set:1 mqtt://set:2"}, "mqtt://set:1 mqtt://set:2", None),
        ([], {"UMQTT_BROKER": "mqtt://set:1", "UMQTT_USERNAME": "me"}, "mqtt://set:1", "me"),
        (["--broker", "mqtt://typed:1", "--broker", "mqtt://typed:2"], {}, "mqtt://typed:1 mqtt://typed:2", None),
    ],
)
def test_credentials_go_only_to_the_broker_that_they_are_for(
    umqtt, tmp_path, asked, given, environment, broker_url, username
):
    """What the file says goes to its own broker, what the environment says to the broker that the user names.

    Planted: the user name, the CA and the version of the file go to any broker given on the command line; the user name
    and the password of the environment go to a broker that only the file names.
    """
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "ca.pem").write_text("")
    write_project(
        tmp_path, "broker = 'mqtt://project:1'\nusername = 'owner'\nca = 'certs/ca.pem'\nmqtt_version = '5'\n"
    )
    umqtt("cmd", "pump-7", "ping", *given, env={"UMQTT_PASSWORD": "secret-horse", **environment})
    (found,) = asked
    is_own = not {"--broker"} & set(given) and "UMQTT_BROKER" not in environment
    assert found["mqtt_version"] == ("5" if is_own else None)
    assert (" ".join(found["brokers"]), found["username"]) == (broker_url, username)
    assert found["ca"] == (folder / "ca.pem" if is_own else None)
    assert found["environment"].get("UMQTT_PASSWORD") == (None if is_own else "secret-horse")


def test_a_password_of_the_environment_that_is_not_used_is_told(umqtt, tmp_path):
    write_project(tmp_path, "broker = 'mqtt://127.0.0.1:1'\nusername = 'owner'\n")
    ended = umqtt("cmd", "pump-7", "ping", env={"UMQTT_PASSWORD": "secret-horse"})
    assert ended.code == 2
    error = ended.only_error()
    assert "UMQTT_PASSWORD is not for a broker that only umqtt.toml names" in error and "secret-horse" not in error


@pytest.mark.parametrize("key", ["password_file", "ca", "cert", "key", "sensors", "fleet"])
@pytest.mark.parametrize("way", ["above", "absolute", "by a link", "by a linked folder"])
def test_a_file_outside_of_the_project_is_not_used(umqtt, tmp_path, monkeypatch, key, way):
    """Planted: only the text of the path is looked at."""
    secret = tmp_path / "home" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret-horse\n")
    secret.chmod(0o600)
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(secret.parent)
    paths = ("../home/secret", str(secret), "link", "linked/secret")
    path = dict(zip(("above", "absolute", "by a link", "by a linked folder"), paths, strict=True))
    (folder / project.FILE).write_text(f"broker = 'mqtt://127.0.0.1:1'\n{key} = '{path[way]}'\n")
    with pytest.raises(project.KitError, match=f"{key} is outside of the project's folder") as refused:
        project.read_project(folder)
    assert refused.value.exit_code == 2


def test_files_inside_of_the_project_are_used_also_where_the_folder_itself_is_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "pass").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / project.FILE).write_text(f"ca = '{tmp_path}/real/pass'\npassword_file = 'pass'\n")
    found = project.read_project(tmp_path / "linked").values
    assert found == {"ca": str(tmp_path / "real" / "pass"), "password_file": str(tmp_path / "linked" / "pass")}


def test_a_project_counts_once_it_is_allowed_and_until_it_changes(umqtt, tmp_path, asked):
    """Planted: only the path is remembered; the first use is allowed silently; help asks too."""
    file = tmp_path / project.FILE
    file.write_text("broker = 'mqtt://project:1'\n")
    ended = umqtt("cmd", "pump-7", "ping")
    assert ended.code == 2 and "umqtt allow" in ended.only_error() and str(file) in ended.stderr and not asked
    # What uses nothing of the file needs no permission.
    assert umqtt("cmd", "--help").code == umqtt("certs", "--help").code == 0
    umqtt("cmd", "pump-7", "ping", "--broker", "mqtt://typed:1")
    assert asked.pop()["brokers"] == ("mqtt://typed:1",)
    allowed = umqtt("allow")
    assert allowed.code == 0 and "broker = mqtt://project:1" in allowed.stdout
    umqtt("cmd", "pump-7", "ping")
    assert asked.pop()["brokers"] == ("mqtt://project:1",)
    file.write_text("broker = 'mqtt://other:1'\n")
    assert umqtt("cmd", "pump-7", "ping").code == 2 and not asked
    found = json.loads(umqtt("allow", "--json").stdout)
    assert found == {"file": str(file), "allowed": True, "values": {"broker": "mqtt://other:1"}}
    umqtt("cmd", "pump-7", "ping")
    assert asked.pop()["brokers"] == ("mqtt://other:1",)
    # The same text elsewhere is another project.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / project.FILE).write_text(file.read_text())
    assert not project.read_project(tmp_path / "other").is_allowed
    assert umqtt("allow", "--deny").code == 0
    assert umqtt("cmd", "pump-7", "ping").code == 2 and not asked
    state = Path(os.environ["XDG_STATE_HOME"]) / "umqtt-robust" / "allowed"
    assert state.stat().st_mode & 0o777 == 0o700
    file.unlink()
    assert "there is no umqtt.toml" in umqtt("allow").only_error()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_the_first_use_asks_and_shows_what_the_file_says(tmp_path, monkeypatch, answer):
    """Planted: it asks at each use."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / project.FILE).write_text('broker = "mqtt://127.0.0.1:1"\nusername = "\\u001b[2Jowner"\n')
    with terminal("pub", "a", "x") as asking:
        asking.until("[y/N]")
        assert "broker = mqtt://127.0.0.1:1" in asking.text and "\\x1b[2Jowner" in asking.text
        asking.type(answer + "\n")
        if answer == "n":
            assert asking.end() == 2 and "is not used" in asking.text
            return
        asking.until("Password of")
        asking.interrupt()
    with terminal("pub", "a", "x") as again:
        again.until("Password of")
        assert "[y/N]" not in again.text
        again.interrupt()


def test_a_list_of_brokers_is_all_of_them(umqtt, tmp_path, asked):
    write_project(tmp_path, "broker = ['mqtt://one:1', 'mqtt://two:1']\nusername = 'owner'\n")
    umqtt("cmd", "pump-7", "ping")
    assert (asked[0]["brokers"], asked[0]["username"]) == (("mqtt://one:1", "mqtt://two:1"), "owner")


def test_the_nearest_file_above_counts_and_its_paths_are_its_own(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "umqtt.toml").write_text("broker = 'mqtt://outer'")
    (tmp_path / "a" / "umqtt.toml").write_text("ca = 'ca.pem'\nfleet = 'pump-*'\nsensors = 'sensors'")
    assert project.read_project(inner).values == {
        "ca": str(tmp_path / "a" / "ca.pem"), "fleet": "pump-*", "sensors": str(tmp_path / "a" / "sensors")
    }  # fmt: skip
    (tmp_path / "a" / "pump-*").touch()
    assert project.read_project(inner).values["fleet"] == str(tmp_path / "a" / "pump-*")


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


def test_the_shell_completes_commands_and_options_whatever_the_folder_says(tmp_path, monkeypatch):
    """Planted: a umqtt.toml that is damaged ends the completion with its error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / project.FILE).write_text("broker = ")
    complete = ShellComplete(cli, {}, "umqtt", "_UMQTT_COMPLETE").get_completions
    assert [item.value for item in complete([], "dep")] == ["deploy"]
    assert [item.value for item in complete(["deploy"], "--no")] == ["--no-wait"]
