"""`umqtt broker --lan`: whoever has the password gets in, over TLS; a second start changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kit_command import umqtt_here
from live_logs import following
from umqtt_broker.cli.lan import is_loopback, prepare
from umqtt_testkit.ports import bound


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_of_the_folder_get_in_and_nobody_without_the_password(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Planted: the listener lets anybody in."""
    keeper = bound("0.0.0.0")  # reserves the port on every address, as the broker will listen on all
    port = keeper.getsockname()[1]
    with keeper, following("--lan", "-p", str(port), command="broker") as running:
        running.until(f"listening on .*:{port} ")
        assert umqtt_here(folder, "pub", "t", "x", "-q", "1").code == 0
        (folder / "umqtt.toml").unlink()
        anybody = ("--broker", f"mqtts://localhost:{port}", "--ca", "umqtt-lan/certs/ca.pem")
        refused = umqtt_here(folder, "pub", "t", "x", "-q", "1", *anybody)
        assert refused.code == 4 and "refuses the connection" in refused.stderr, refused.stderr
        board = json.loads((folder / "umqtt-lan" / "board.json").read_text())
        password = board["mqtt"]["password"]
        assert board["settings"]["brokers"][0].endswith(f":{port}") and password not in running.out + running.err


def test_a_second_start_keeps_everything_and_follows_this_computers_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Planted: a certificate that is for the address of the first start alone."""

    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}

    monkeypatch.setattr("umqtt_broker.cli.lan.own_address", lambda: "198.51.100.7")
    prepare(8883)
    before = contents()
    prepare(8883)
    assert contents() == before
    secrets = [path for path in folder.rglob("*") if path.name in ("board.json", "password", "passwords", "key.pem")]
    assert len(secrets) == 4 and all(path.stat().st_mode & 0o077 == 0 for path in secrets)

    monkeypatch.setattr("umqtt_broker.cli.lan.own_address", lambda: "198.51.100.8")
    prepare(8883)
    changed = {re.sub(".*/umqtt-lan/", "", path) for path, content in contents().items() if before[path] != content}
    assert changed == {"board.json", "certs/issued.jsonl", "certs/broker/cert.pem", "certs/broker/key.pem"}
    (folder / "umqtt.toml").write_text('board = "ESP32_GENERIC"\n')
    capsys.readouterr()
    prepare(8883)
    assert 'broker = "mqtts://localhost:8883"' in capsys.readouterr().err
    assert (folder / "umqtt.toml").read_text() == 'board = "ESP32_GENERIC"\n'


def test_names_and_addresses_of_the_computer_itself_are_known():
    own = ("localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "0.0.0.0")
    assert all(map(is_loopback, own))
    assert not any(map(is_loopback, ("192.0.2.1", "localhost.example", "fe80::1", "broker", "")))
