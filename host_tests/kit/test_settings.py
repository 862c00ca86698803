"""umqtt settings: groups of devices converge to what a file demands of them, and drift is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cable import Cable, broker
from owner import own
from umqtt_broker.protocol.topics import has_wildcard
from umqtt_broker.routing.retained import RetainedMessages
from umqtt_kit.deploy.build import build
from umqtt_kit.desired import Group, desired_of, read_groups
from umqtt_kit.device_commands import known_devices
from umqtt_kit.mqtt import Access
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import eventually

from umqtt_cli.errors import KitError


def _file(folder: Path, text: str) -> Path:
    file = folder / "fleet.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[group.a", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("", "group.cellar"),
        ("colour = 1\n[group.a]\ndevices = []\nsettings = {}", "'colour' is not known"),
        ("group = 1", "group.cellar"),
        ("[group]\na = 1", "a table with devices and settings"),
        ("[group.a]\ndevices = ['p']", "settings is missing"),
        ("[group.a]\ndevice = ['p']\nsettings = {}", "'device' is not known"),
        ("[group.a]\ndevices = 'p'\nsettings = {}", "a list of ids"),
        ("[group.a]\ndevices = ['p/1']\nsettings = {}", "a list of ids"),
        ("[group.a]\ndevices = ['']\nsettings = {}", "a list of ids"),
        ("[group.a]\ndevices = ['p']\nsettings = 1", "must be a table"),
        ("[group.a]\ndevices = ['p']\nsettings = {colour = 1}", "unknown key"),
        ("[group.a]\ndevices = ['p']\nsettings = {interval_ms = 1}", "interval_ms: must be"),
        ("[group.a]\ndevices = ['p']\nsettings = {keep_alive = 2020-01-01}", "keep_alive: must be"),
        ("[group.a]\ndevices = ['p']\nsettings = {device_id = 'q'}", "only over the cable"),
        ("[group.a]\ndevices = ['p']\nsettings = {unsigned_commands = true}", "only over the cable"),
        ("[group.a]\ndevices = ['p']\nsettings = {sensors = [{module = 'a', at = 2020-01-01}]}", "JSON"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_and_exit_code_2(tmp_path: Path, text: str, why: str):
    with pytest.raises(KitError, match=why) as caught:
        read_groups(_file(tmp_path, text))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    with pytest.raises(KitError, match="give a file"):
        read_groups(tmp_path / "none.toml")


def test_later_groups_come_first_and_an_id_counts_though_nobody_has_seen_it():
    """Planted: an earlier group wins; a group's settings replace another's as a whole."""
    groups = [
        Group("all", ("*",), {"interval_ms": 1000, "expires_s": 5}),
        Group("cellar", ("pump-[12]", "new-1"), {"interval_ms": 2000}),
    ]
    assert desired_of(groups, ["lamp", "pump-1", "pump-3"]) == {
        "lamp": {"interval_ms": 1000, "expires_s": 5},
        "new-1": {"interval_ms": 2000},
        "pump-1": {"interval_ms": 2000, "expires_s": 5},
        "pump-3": {"interval_ms": 1000, "expires_s": 5},
    }


def _rows(cable: Cable, port: int, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    answer = cable.umqtt("settings", *arguments, "--broker", f"mqtt://127.0.0.1:{port}", "--json")
    assert answer.stdout, answer.stderr
    return answer.code, {row["device"]: (row["state"], row["text"]) for row in answer.json["devices"]}


def test_devices_are_asked_one_by_one_where_wildcards_bring_no_retained_messages(
    cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As at RabbitMQ 3.10. Planted: an empty fleet is shown, and nothing is said of it."""
    walk = RetainedMessages.walk
    monkeypatch.setattr(RetainedMessages, "walk", lambda all, one: iter(()) if has_wildcard(one) else walk(all, one))
    with broker(tmp_path) as port:
        payload = json.dumps({"id": "1", "cmd": "set", "args": {"settings": {"interval_ms": 500}}})
        where = ("--broker", f"mqtt://127.0.0.1:{port}")
        assert cable.umqtt("pub", "--retain", "fleet/pump-1/desired", payload, *where).code == 0
        reported = json.dumps({"boot": "1-a", "settings": {"interval_ms": 500}})
        assert cable.umqtt("pub", "--retain", "fleet/pump-1/reported", reported, *where).code == 0
        answer = cable.umqtt("settings", "show", *where)
        assert "umqtt settings show DEVICE" in answer.stderr and "pump-1" not in answer.stdout
        assert _rows(cable, port, "show", "pump-1")[1] == {"pump-1": ("as desired", "")}
        file = _file(tmp_path, "[group.a]\ndevices = ['pump-1']\nsettings = {interval_ms = 500}\n")
        assert _rows(cable, port, "apply", str(file)) == (0, {"pump-1": ("as desired", "")})


def _start(board: VirtualBoard, port: int, device: str, secrets: dict) -> None:
    settings = {"device_id": device, "brokers": [f"mqtt://127.0.0.1:{port}"], "ntp_host": ""}
    written = {"/settings.json": json.dumps(settings).encode(), "/secrets.json": json.dumps(secrets).encode()}
    board.stop()
    board.install({**build("UNIX", ()).files, **written})
    board.start()


def test_boards_converge_also_when_they_come_back_and_drift_is_shown(
    cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: desired settings are not retained; a change by a command is not reported; known settings are sent
    again.
    """
    text = "[group.all]\ndevices = ['pump-*', 'pump-3']\nsettings = {interval_ms = %d, keep_alive = 30}\n"
    desired = {"interval_ms": 500, "keep_alive": 30}
    with broker(tmp_path) as port, cable.board("one", heap="1M") as one, cable.board("two", heap="1M") as two:
        _start(one, port, "pump-1", own("pump-1", tmp_path, monkeypatch))
        _start(two, port, "pump-2", {})
        where = ("--broker", f"mqtt://127.0.0.1:{port}")
        access = Access((where[1],))
        eventually(lambda: known_devices(access) == ["pump-1", "pump-2"], lambda: known_devices(access))
        code, rows = _rows(cable, port, "apply", str(_file(tmp_path, text % 500)))
        # The other board has no key, and keep_alive needs a signature.
        assert (code, rows["pump-1"], rows["pump-2"][0]) == (5, ("as desired", ""), "refused")
        assert "must be signed" in rows["pump-2"][1]
        assert one.lives == 2 and two.lives == 1
        found = json.loads(cable.umqtt("cmd", "pump-1", "get", "--json", *where).stdout)["result"]
        assert {key: found[key] for key in desired} == desired
        # A board that already matches is sent nothing, and does not restart again.
        assert _rows(cable, port, "apply", str(_file(tmp_path, text % 500)))[1]["pump-1"] == ("as desired", "")
        assert one.lives == 2
        # A change by hand.
        assert cable.umqtt("cmd", "pump-1", "set", "interval_ms", "700", *where).code == 0
        drift = ("drift", "interval_ms is 700, not 500")
        eventually(lambda: _rows(cable, port, "show")[1].get("pump-1") == drift, lambda: _rows(cable, port, "show"))
        assert _rows(cable, port, "show")[0] == 5
        # A board that is away gets the settings when it is back, and a new board when it first comes.
        one.kill()
        eventually(lambda: "lost" in cable.umqtt("sub", "fleet/pump-1/status", "--count", "1", *where).stdout, str)
        secrets = own("pump-3", tmp_path, monkeypatch)
        rows = _rows(cable, port, "apply", str(_file(tmp_path, text % 900)))[1]
        assert rows["pump-1"] == ("waiting", "connection lost; interval_ms is 700, not 900")
        assert rows["pump-3"][0] == "waiting" and "never been there" in rows["pump-3"][1]
        one.start()
        _start(two, port, "pump-3", secrets)
        for device in ("pump-1", "pump-3"):
            eventually(lambda device=device: _rows(cable, port, "show")[1].get(device) == ("as desired", ""),
                       lambda: _rows(cable, port, "show"))  # fmt: skip
