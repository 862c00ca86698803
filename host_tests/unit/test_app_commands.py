"""Every command is answered, whatever came; pause answers only when nothing is left in the outbox."""

import json

import _app_fakes as fakes
from app.commands import CommandError, Commands, parse_command
from app.telemetry import Telemetry
from umqtt_testkit.portable import Rng, equal, raises

_REPLY = b"fleet/pump-7/reply"
_CMD = b"fleet/pump-7/cmd"


def _build(client=None):
    client = client or fakes.Client()
    ticks, clock = fakes.clock()
    telemetry = Telemetry(client, fakes.identity(), clock, (), 100, fakes.Log().report)
    return client, ticks, telemetry, Commands(client, fakes.identity(), clock, telemetry)


def _replies(client):
    return [json.loads(payload) for payload in client.payloads(_REPLY)]


def test_ping_answers_with_boot_and_uptime():
    client, ticks, _, commands = _build()
    ticks.advance(1234)
    commands.handle(_CMD, b'{"id": "1", "cmd": "ping"}')
    commands.step()
    equal(_replies(client), [{"id": "1", "ok": True, "result": {"boot": "17-9f3a2c5d8e1b4a70", "up": 1234}}])


def test_pause_answers_only_once_the_outbox_is_empty():
    client, ticks, telemetry, commands = _build()
    telemetry.step()
    commands.handle(_CMD, b'{"id": "2", "cmd": "pause"}')
    for _ in range(5):
        ticks.advance(1000)
        telemetry.step()
        commands.step()
    equal((_replies(client), telemetry.seq), ([], 1))
    client.acknowledge()
    commands.step()
    commands.step()
    equal(_replies(client), [{"id": "2", "ok": True, "result": {
        "boot": "17-9f3a2c5d8e1b4a70", "paused": True, "published": 1, "dropped": 0}}])


def test_pause_twice_under_one_id_is_answered_once():
    client, _, telemetry, commands = _build()
    telemetry.step()
    commands.handle(_CMD, b'{"id": "2", "cmd": "pause"}')
    commands.handle(_CMD, b'{"id": "2", "cmd": "pause"}')
    client.acknowledge()
    commands.step()
    commands.step()
    equal(len(_replies(client)), 1)


def test_resume_takes_readings_again_and_tells_who_still_waits():
    client, ticks, telemetry, commands = _build()
    telemetry.step()
    commands.handle(_CMD, b'{"id": "2", "cmd": "pause"}')
    commands.handle(_CMD, b'{"id": "3", "cmd": "resume"}')
    commands.step()
    telemetry.step()
    equal(telemetry.seq, 2)
    equal([(reply["id"], reply["ok"]) for reply in _replies(client)], [("2", False), ("3", True)])


def test_an_unknown_command_is_answered_with_those_known():
    client, _, _, commands = _build()
    commands.handle(_CMD, b'{"id": "4", "cmd": "selfdestruct"}')
    commands.step()
    reply = _replies(client)[0]
    equal((reply["id"], reply["ok"]), ("4", False))
    assert "pause, ping, resume" in reply["result"]


def test_what_is_no_command_is_refused_and_answered():
    for payload in (
        b"", b"{", b"\xff\xfe", b"[]", b"7", b"{}", b'{"cmd": "ping"}', b'{"id": 1, "cmd": "ping"}',
        b'{"id": "", "cmd": "ping"}', b'{"id": "1"}', b'{"id": "1", "cmd": 3}',
        b'{"id": "' + b"x" * 65 + b'", "cmd": "ping"}', b" " * 2000,
    ):
        raises(CommandError, parse_command, payload)
        client, _, _, commands = _build()
        commands.handle(_CMD, payload)
        commands.step()
        equal([reply["ok"] for reply in _replies(client)], [False], repr(payload[:40]))


def test_random_bytes_never_raise():
    rng = Rng(99)
    _, _, _, commands = _build()
    for _ in range(300):
        commands.handle(_CMD, rng.bytes(rng.below(40)))
        commands.step()


def test_replies_wait_for_room_in_the_outbox_and_a_flood_is_counted():
    client, _, _, commands = _build(fakes.Client(room=0))
    for number in range(20):
        commands.handle(_CMD, b'{"id": "%d", "cmd": "ping"}' % number)
        commands.step()
    equal(commands.unanswered, 4)
    client.room = 100
    commands.step()
    equal([reply["id"] for reply in _replies(client)], [str(number) for number in range(16)])
