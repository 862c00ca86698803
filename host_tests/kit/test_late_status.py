"""A broker that takes its time to send what it has retained."""

from __future__ import annotations

import json
import subprocess

from kit_command import umqtt_command
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.wire import Packet, Type, publish

_DEVICE = "fleet/pump-7"


def _next(link: Link, kind: Type) -> Packet:
    """The next packet of this type; it and those before are answered."""
    while True:
        packet = link.receive()
        assert packet is not None, f"closed before {kind.name}"
        link.answer(packet)
        if packet.type is kind:
            return packet


def test_that_a_device_sleeps_is_said_also_when_its_status_comes_after_the_command_went(peer: ScriptedPeer):
    def script(peer: ScriptedPeer) -> None:
        link = peer.accept()
        link.accept_session()
        command = json.loads(_next(link, Type.PUBLISH).payload)
        _next(link, Type.PUBREL)
        status = json.dumps({"online": False, "reason": "sleeping"}).encode()
        reply = json.dumps({"id": command["id"], "ok": True, "result": "done"}).encode()
        link.send(publish(f"{_DEVICE}/status".encode(), status, retain=True))
        link.send(publish(f"{_DEVICE}/reply".encode(), reply))
        _next(link, Type.DISCONNECT)

    peer.run(script)
    command = umqtt_command("cmd", "pump-7", "reboot", "--wait", "--broker", peer.url)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert ended.stderr == "pump-7 sleeps; it answers at its next wake\n"
