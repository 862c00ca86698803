"""What a device says it has done on a signed command is believed only with its signature; no key is lost to a liar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cable import broker
from kit_command import umqtt_here
from live_device import PlayedDevice
from umqtt_kit.device_commands import Remote
from umqtt_kit.errors import EXIT_DEVICE, EXIT_NETWORK
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.keys import Keys
from umqtt_kit.mqtt import Access

_ID = "pump-7"
signed = firmware_module("signed")


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.chdir(tmp_path)
    with broker(tmp_path) as port:
        yield port


def _lies(key: bytes) -> dict[str, Callable[[dict[str, Any]], bytes]]:
    """Return ways to answer a command without the key of the device. key: that of another one."""

    def text(command: dict[str, Any]) -> bytes:
        return json.dumps({"id": command["id"], "ok": True, "result": {}}).encode()

    return {
        "unsigned": text,
        "another key": lambda command: signed.sign(key, _ID, text(command), signed.REPLY),
        "a mac that is none": lambda command: text(command)[:-1] + b',"mac":"' + b"0" * 64 + b'"}',
        "short": lambda command: text(command)[:-1] + b',"mac":""}',
    }


class Liar(PlayedDevice):
    """Whoever has the broker in his hands; lie(command) returns the payload of a reply."""

    def __init__(self, port: int, lie: Callable[[dict[str, Any]], bytes]) -> None:
        super().__init__(port, _ID, lambda command: [])
        self._client.on_message = lambda client, _, message: client.publish(
            f"fleet/{_ID}/reply", lie(json.loads(message.payload)), 1
        )


@pytest.mark.parametrize("way", list(_lies(b"")))
def test_an_owner_keeps_his_keys_whatever_a_broker_says(port: int, way: str):
    """Planted: a reply without a signature is believed; one that is signed with any key is."""
    key = Keys().offer(_ID)
    Keys().offer(_ID)
    before = Keys().read()
    liar = Liar(port, _lies(b"k" * 32)[way])
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, "--broker", f"mqtt://127.0.0.1:{port}", "--timeout", "1")
    liar.sleep()
    assert (ended.code, ended.stdout) == (EXIT_NETWORK, "") and "not signed with its key" in ended.stderr, ended.stderr
    entry = Keys().read()[_ID]
    assert (entry["key"], entry["other"]) == (key, before[_ID]["other"])


def test_a_signed_reply_to_another_command_or_from_another_device_is_none(port: int):
    """Planted: the mac does not cover the id of the device."""
    key = bytes.fromhex(Keys().offer(_ID))
    ok = b'{"id": "%s", "ok": true, "result": {}}'

    def another(command: dict[str, Any]) -> bytes:
        return signed.sign(key, "pump-8", ok % command["id"].encode(), signed.REPLY)

    def reflected(command: dict[str, Any]) -> bytes:
        return signed.sign(key, _ID, ok % command["id"].encode(), signed.COMMAND)

    for lie in (another, reflected):
        liar = Liar(port, lie)
        ended = umqtt_here(Path.cwd(), "cmd", _ID, "reboot", "--broker", f"mqtt://127.0.0.1:{port}", "--timeout", "1")
        liar.sleep()
        assert ended.code == EXIT_NETWORK and "not signed with its key" in ended.stderr, ended.stderr


def test_a_refusal_is_believed_and_the_other_key_tried_and_both_are_kept(port: int):
    """Planted: the key that was not refused last is forgotten."""
    keys = {Keys().offer(_ID), Keys().offer(_ID)}
    refuses = Liar(port, lambda command: json.dumps(
        {"id": command["id"], "ok": False, "result": "its signature is wrong: …"}).encode())  # fmt: skip
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, "--broker", f"mqtt://127.0.0.1:{port}", "--timeout", "5")
    refuses.sleep()
    assert ended.code == EXIT_DEVICE and "signature is wrong" in ended.stderr, ended.stderr
    entry = Keys().read()[_ID]
    assert {entry["key"], entry["other"]} == keys


def test_the_key_that_the_device_has_is_found_and_the_other_forgotten(port: int):
    """Planted: the key that signed the command is kept, not the one that signed the reply."""
    Keys().offer(_ID)
    its = Keys().offer(_ID)

    def answer(command: dict[str, Any]) -> bytes:
        return signed.sign(bytes.fromhex(its), _ID, b'{"id": "%s", "ok": true, "result": {}}' % command["id"].encode(),
                           signed.REPLY)  # fmt: skip

    device = Liar(port, answer)
    with Remote(Access((f"mqtt://127.0.0.1:{port}",)), _ID) as remote:
        remote.find_key(20)
    device.sleep()
    entry = Keys().read()[_ID]
    assert entry["key"] == its and "other" not in entry
