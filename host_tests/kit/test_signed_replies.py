"""What a device says it has done on a signed command is believed only with its signature; no key is lost to a liar."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cable import broker
from kit_command import umqtt_here
from live_device import PlayedDevice
from umqtt_kit.device_commands import Remote
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.keys import Keys
from umqtt_kit.links import Links
from umqtt_kit.mqtt import Access
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK

_ID = "pump-7"
signed = firmware_module("signed")


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.chdir(tmp_path)
    with broker(tmp_path) as port:
        yield port


@pytest.fixture
def until_the_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a command wait until a reply was not believed, and not for the time that its device has."""
    lied = threading.Event()
    believed, wait_for = Remote._is_believed, Links.wait_for

    def is_believed(remote: Remote, reply: dict[str, Any], payload: bytes) -> bool:
        found = believed(remote, reply, payload)
        if not found:
            lied.set()
        return found

    def wait(links: Links, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        return wait_for(links, lambda: lied.is_set() or condition(), WAIT_LIMIT_S) and condition()

    monkeypatch.setattr(Remote, "_is_believed", is_believed)
    monkeypatch.setattr(Links, "wait_for", wait)


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
def test_an_owner_keeps_his_keys_whatever_a_broker_says(port: int, until_the_lie: None, way: str):
    """Planted: a reply without a signature is believed; one that is signed with any key is."""
    key = Keys().offer(_ID)
    Keys().offer(_ID)
    before = Keys().read()
    liar = Liar(port, _lies(b"k" * 32)[way])
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, "--broker", f"mqtt://127.0.0.1:{port}")
    liar.sleep()
    assert (ended.code, ended.stdout) == (EXIT_NETWORK, "") and "not signed with its key" in ended.stderr, ended.stderr
    entry = Keys().read()[_ID]
    assert (entry["key"], entry["other"]) == (key, before[_ID]["other"])


@pytest.mark.parametrize("way", ["another device", "a reflected command"])
def test_a_signature_for_another_device_or_of_a_command_is_none(port: int, until_the_lie: None, way: str):
    """Planted: the mac does not cover the id of the device, or what was signed."""
    key = bytes.fromhex(Keys().offer(_ID))
    device, what = {"another device": ("pump-8", signed.REPLY), "a reflected command": (_ID, signed.COMMAND)}[way]

    def lie(command: dict[str, Any]) -> bytes:
        text = b'{"id": "%s", "ok": true, "result": {}}' % command["id"].encode()
        return signed.sign(key, device, text, what)

    liar = Liar(port, lie)
    ended = umqtt_here(Path.cwd(), "cmd", _ID, "reboot", "--broker", f"mqtt://127.0.0.1:{port}")
    liar.sleep()
    assert ended.code == EXIT_NETWORK and "not signed with its key" in ended.stderr, ended.stderr


def test_a_refusal_is_believed_and_the_other_key_tried_and_both_are_kept(port: int):
    """Planted: the key that was not refused last is forgotten."""
    keys = {Keys().offer(_ID), Keys().offer(_ID)}
    refuses = Liar(port, lambda command: json.dumps(
        {"id": command["id"], "ok": False, "result": "its signature is wrong: …"}).encode())  # fmt: skip
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, "--broker", f"mqtt://127.0.0.1:{port}")
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
