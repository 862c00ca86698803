"""Every command is carried out once and answered, whatever it contains, and despite power cuts and a full outbox."""

import json
import os
from binascii import crc32

import _app_fakes as fakes
import boot_choice
from app.actions import Actions
from app.board import Board
from app.commands import CommandError, Commands, parse_command
from app.ledger import SIZE, Ledger
from app.telemetry import Telemetry
from umqtt_testkit.portable import Rng, equal, new_path, raises

_REPLY = b"fleet/pump-7/reply"
_CMD = b"fleet/pump-7/cmd"
_SETTINGS = {"brokers": ["mqtt://b"], "interval_ms": 1000, "unsigned_commands": True}


class World:
    """A board's parts over one flash folder; boot() restarts the board."""

    def __init__(self, room=100):
        self.root = new_path("commands")
        os.mkdir(self.root)
        self.save({"brokers": ["mqtt://b"], "unsigned_commands": True})
        self.client = fakes.Client(room)
        self.restarts = 0
        self.boot()

    def save(self, settings):
        with open(self.root + "/settings.json", "w") as file:
            json.dump(settings, file)

    def settings(self):
        with open(self.root + "/settings.json") as file:
            return json.load(file)

    def boot(self):
        self.ticks, clock = fakes.clock()
        boots = boot_choice.read_boots(self.root)
        boot_choice.begin(boots)
        self.board = board = Board(self.root, dict(_SETTINGS), boots, "0.1.0")
        board.client, board.clock, board.identity, board.log = self.client, clock, fakes.identity(), fakes.Log()
        board.telemetry = Telemetry(self.client, board.identity, clock, (), 100, board.log.report)
        board.restart = self._restart
        board.actions = Actions(board)
        board.commands = Commands(self.client, _REPLY, Ledger(self.root + "/state/commands"), board.actions)

    def _restart(self):
        self.restarts += 1

    def send(self, command_id, name, **args):
        payload = {"id": command_id, "cmd": name}
        if args:
            payload["args"] = args
        self.board.commands.handle(_CMD, json.dumps(payload).encode())
        return self.step()

    def step(self):
        self.board.actions.step()
        self.board.commands.step()
        return self.replies()[-1] if self.replies() else None

    def replies(self):
        return [json.loads(payload) for payload in self.client.payloads(_REPLY)]

    def acknowledge(self):
        self.client.acknowledge()
        self.step()


def test_ping_answers_with_boot_uptime_and_version():
    world = World()
    world.ticks.advance(1234)
    reply = world.send("1", "ping")
    equal((reply["id"], reply["ok"]), ("1", True))
    equal((reply["result"]["boot"], reply["result"]["up"]), ("17-9f3a2c5d8e1b4a70", 1234))
    equal((reply["result"]["fw"], reply["result"]["slot"]), ("0.1.0", "base"))


def test_a_command_that_comes_again_is_answered_alike_and_not_carried_out_again():
    world = World()
    first = world.send("1", "ping")
    world.acknowledge()
    world.ticks.advance(50)
    equal(world.send("1", "ping"), first)
    equal(world.send("1", "reboot"), first)
    equal((len(world.replies()), world.board.commands.executed, world.restarts), (3, 1, 0))
    world.acknowledge()
    world.boot()
    world.step()
    equal(len(world.replies()), 3)
    equal(world.send("1", "ping"), first)
    equal((len(world.replies()), world.board.commands.repeated), (4, 1))


def test_a_command_that_comes_again_before_its_reply_is_acknowledged_gets_another():
    world = World()
    first = world.send("1", "ping")
    equal(world.send("1", "ping"), first)
    equal(len(world.replies()), 2)
    world.acknowledge()
    world.step()
    equal((len(world.replies()), world.board.commands.busy), (2, False))


def test_a_reply_that_the_broker_does_not_have_goes_again_after_a_restart():
    world = World()
    first = world.send("1", "ping")
    # The outbox, which was in RAM, is lost with the power.
    world.client.pending = 0
    world.client.published = []
    world.boot()
    equal(world.step(), first)


def test_reboot_is_carried_out_once_and_answered_by_the_next_boot():
    world = World()
    world.send("1", "reboot")
    equal((world.restarts, world.replies()), (1, []))
    world.send("1", "reboot")
    equal(world.restarts, 1)
    world.boot()
    reply = world.step()
    equal((reply["id"], reply["ok"], world.restarts), ("1", True, 1))
    assert "boot" in reply["result"]
    world.acknowledge()
    world.boot()
    world.send("1", "reboot")
    equal((world.restarts, len(world.replies())), (1, 2))


def test_set_is_checked_written_and_applied():
    world = World()
    reply = world.send("1", "set", key="interval_ms", value=500)
    equal(reply["result"], {"key": "interval_ms", "value": 500, "was": 1000, "applies": "now"})
    equal((world.board.telemetry.interval_ms, world.settings()["interval_ms"]), (500, 500))
    reply = world.send("2", "set", key="keep_alive", value=30)
    equal(reply["result"]["applies"], "after reboot")
    before = world.settings()
    for args in ({"key": "interval_ms", "value": 1}, {"key": "colour", "value": 1}, {"key": "brokers", "value": []}):
        reply = world.send("bad" + args["key"], "set", **args)
        assert not reply["ok"] and args["key"] in reply["result"], reply
    assert not world.send("3", "set", key="interval_ms")["ok"]
    # Both interpreters read 1e999 as infinity, and the board could not read back what it would write.
    world.board.commands.handle(
        _CMD,
        b'{"id": "6", "cmd": "set", "args": {"key": "sensors", "value": [{"module": "bme280", "offset": 1e999}]}}',
    )
    reply = world.step()
    assert not reply["ok"] and "finite" in reply["result"], reply
    equal(world.settings(), before)
    equal(world.send("4", "get", key="interval_ms")["result"], {"key": "interval_ms", "value": 500})
    assert not world.send("5", "get", key="password")["ok"]


def test_set_that_the_power_cut_short_says_whether_it_was_done():
    for done in (False, True):
        world = World()
        ledger = Ledger(world.root + "/state/commands")
        ledger.begin("7", b'{"id": "7", "cmd": "set", "args": {"key": "interval_ms", "value": 500}}')
        if done:
            world.save({"brokers": ["mqtt://b"], "interval_ms": 500})
        world.boot()
        reply = world.step()
        equal((reply["id"], reply["ok"]), ("7", done))
        equal(world.settings().get("interval_ms"), 500 if done else None)


def test_pause_answers_only_once_the_outbox_is_empty():
    world = World()
    world.board.telemetry.step()
    world.send("2", "pause")
    for _ in range(5):
        world.ticks.advance(1000)
        world.board.telemetry.step()
        world.step()
    equal((world.replies(), world.board.telemetry.seq), ([], 1))
    world.acknowledge()
    equal(
        world.replies(),
        [
            {
                "id": "2",
                "ok": True,
                "result": {"boot": "17-9f3a2c5d8e1b4a70", "paused": True, "published": 1, "dropped": 0},
            }
        ],
    )


def test_pause_twice_under_one_id_is_answered_once():
    world = World()
    world.board.telemetry.step()
    world.send("2", "pause")
    world.send("2", "pause")
    world.acknowledge()
    world.step()
    equal(len(world.replies()), 1)


def test_pause_that_a_restart_cut_short_says_so():
    world = World()
    world.board.telemetry.step()
    world.send("2", "pause")
    world.boot()
    reply = world.step()
    equal((reply["id"], reply["ok"], world.board.telemetry.paused), ("2", False, False))


def test_resume_takes_readings_again_and_tells_who_still_waits():
    world = World()
    world.board.telemetry.step()
    world.send("2", "pause")
    world.send("3", "resume")
    world.board.telemetry.step()
    equal(world.board.telemetry.seq, 2)
    equal([(reply["id"], reply["ok"]) for reply in world.replies()], [("2", False), ("3", True)])


def test_read_shows_files_of_the_allowed_folders_and_no_secret():
    world = World()
    os.mkdir(world.root + "/app")
    with open(world.root + "/app/big.py", "wb") as file:
        file.write(b"\xc3\xa4" * 700)
    for name in ("secrets.json", "ca.pem"):
        with open(world.root + "/" + name, "w") as file:
            file.write("top secret")
    equal(world.send("1", "read")["result"]["entries"][0], ["app", None])
    assert "secrets" not in json.dumps(world.replies())
    equal(world.send("2", "read", path="/app")["result"]["entries"], [["big.py", 1400]])
    found = world.send("3", "read", path="/app/big.py")["result"]
    equal((found["size"], len(found["text"].encode())), (1400, found["bytes"]))
    assert 250 <= found["bytes"] <= 1024
    equal(world.send("4", "read", path="app/big.py", offset=1398)["result"]["text"], "\u00e4")
    equal(world.send("5", "read", path="/./app//./big.py", offset=1398)["result"]["path"], "/app/big.py")
    for number, offset in enumerate((-1, 1 << 62, 1.5, True, "1")):
        for path in ("/app", "/app/big.py"):
            reply = world.send("offset%d%s" % (number, path), "read", path=path, offset=offset)
            assert not reply["ok"] and reply["result"].startswith("offset: must be"), reply
            world.acknowledge()
    equal(world.send("6", "read", path="/app/big.py", offset=5000)["result"]["bytes"], 0)
    os.mkdir(world.root + "/state/mqtt")
    with open(world.root + "/state/mqtt/session", "w") as file:
        file.write("top secret")
    for number, path in enumerate(
        (
            "/secrets.json",
            "//secrets.json",
            "app/../secrets.json",
            "/ca.pem",
            "../etc/passwd",
            "state/mqtt/session",
            "/settings.json/../secrets.json",
            7,
            "./secrets.json",
            "/state/./mqtt",
            "/state//mqtt/session",
            "./state/././mqtt/0",
            "state/MQTT",
            "state/x/../mqtt",
        )
    ):
        reply = world.send("no%d" % number, "read", path=path)
        world.acknowledge()
        assert not reply["ok"] and "top secret" not in reply["result"], reply


def test_crash_tells_the_last_traceback():
    world = World()
    equal(world.send("1", "crash")["ok"], True)


def test_an_unknown_command_is_answered_with_those_known():
    reply = World().send("4", "selfdestruct")
    equal((reply["id"], reply["ok"]), ("4", False))
    assert "crash, get, log, outbox, output, pause, ping, read" in reply["result"]


def test_what_is_no_command_is_refused_and_answered():
    for payload in (
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"cmd": "ping"}',
        b'{"id": 1, "cmd": "ping"}',
        b'{"id": "", "cmd": "ping"}',
        b'{"id": "1"}',
        b'{"id": "1", "cmd": 3}',
        b'{"id": "1", "cmd": "ping", "args": 1}',
        b'{"id": "' + b"x" * 65 + b'", "cmd": "ping"}',
        b" " * 2000,
    ):
        raises(CommandError, parse_command, payload)
        world = World()
        world.board.commands.handle(_CMD, payload)
        world.step()
        equal([reply["ok"] for reply in world.replies()], [False], repr(payload[:40]))


def test_random_bytes_never_raise():
    rng = Rng(99)
    world = World()
    for _ in range(300):
        world.board.commands.handle(_CMD, rng.bytes(rng.below(40)))
        world.step()


def test_a_reply_too_long_for_a_message_is_answered_with_that():
    world = World()
    world.board.settings["wifi"] = ["x" * 30] * 60
    reply = world.send("1", "get")
    equal(reply["ok"], False)
    assert "1600 bytes" in reply["result"]


def test_replies_wait_for_room_in_the_outbox_and_what_finds_no_room_is_not_carried_out_and_counted():
    world = World(room=0)
    world.client.connected = False
    for number in range(SIZE + 12):
        world.send(str(number), "ping")
    commands = world.board.commands
    equal((commands.executed, commands.unanswered), (SIZE, 4))
    world.client.room, world.client.connected = 100, True
    world.step()
    answers = {reply["id"]: reply["ok"] for reply in world.replies()}
    equal([answers[str(number)] for number in range(SIZE + 8)], [True] * SIZE + [False] * 8)
    # Once the broker has the replies, there is room for the next command.
    world.acknowledge()
    equal(world.send("next", "ping")["ok"], True)


def test_a_reply_that_the_outbox_dropped_goes_again():
    world = World()
    world.send("1", "ping")
    world.board.commands.dropped(1)
    world.step()
    equal([reply["id"] for reply in world.replies()], ["1", "1"])


def test_a_command_that_cannot_be_kept_is_not_carried_out():
    world = World()
    world.board.commands._ledger._path = "/dev/null/"
    reply = world.send("1", "reboot")
    equal((reply["ok"], world.restarts), (False, 0))
    assert "cannot be kept in flash" in reply["result"]


def test_a_reply_that_cannot_be_kept_goes_all_the_same_and_once_more_after_the_next_start():
    def full(order, reply):
        raise OSError(28)

    world = World()
    world.board.commands._ledger.finish = full
    equal(world.send("1", "ping")["ok"], True)
    equal(world.send("1", "ping")["ok"], True)
    equal((len(world.replies()), world.board.commands.executed), (1, 1))
    assert "not noted in flash" in world.board.log.records[0][1]
    world.boot()
    equal((world.step()["id"], len(world.replies())), ("1", 2))


def test_an_id_whose_checksum_is_0_is_not_taken_for_one_that_was_carried_out():
    # Planted: the checksum of an id may be 0, which stands for none. One id in 2**32 was refused.
    equal(crc32(b"abki9136"), 0)
    equal(World().send("abki9136", "ping")["ok"], True)


def test_the_oldest_ids_are_forgotten_first():
    world = World()
    for number in range(SIZE + 3):
        world.send(str(number), "ping")
        world.acknowledge()
    for life in (0, 1):
        executed = world.board.commands.executed
        for number in range(3, SIZE + 3):
            world.send(str(number), "ping")
            world.acknowledge()
        equal(world.board.commands.executed, executed, "life %d" % life)
        world.boot()


def test_what_a_broker_sends_again_is_known_after_the_replies_are_gone():
    """Four times as many commands as there are replies: one by one, then all again in their order, over restarts."""
    # Planted: only the commands with replies are known; a file takes the ids along once only; they are lost by a boot.
    world = World()
    for number in range(4 * SIZE):
        world.send(str(number), "set", key="interval_ms", value=100 + number)
        world.acknowledge()
        if number % 7 == 0:
            world.boot()
    for life in (0, 1):
        executed = world.board.commands.executed
        for number in range(4 * SIZE):
            reply = world.send(str(number), "set", key="interval_ms", value=100 + number)
            if number < 3 * SIZE:
                equal((reply["id"], reply["ok"]), (str(number), False))
                assert "carried out before" in reply["result"], reply
            world.acknowledge()
        equal((world.board.commands.executed, world.settings()["interval_ms"]), (executed, 99 + 4 * SIZE), life)
        world.boot()
    # Those that are forgotten at last are older than that.
    world.send("new", "ping")
    world.acknowledge()
    equal(world.send("0", "ping")["ok"], True)


def test_a_ledger_of_an_earlier_version_is_read():
    # Planted: the end of an old command is taken for the ids of older ones.
    world = World()
    ledger = Ledger(world.root + "/state/commands")
    ledger._write("1", 1, b'{"id": "a", "cmd": "reboot"}')
    world.boot()
    equal(world.board.commands._ledger.command(1), {"id": "a", "cmd": "reboot"})
    world.step()
    equal([reply["id"] for reply in world.replies()], ["a"])
    equal(world.board.commands._ledger.was_done("a"), False)


def test_a_mistake_in_a_command_is_answered_and_the_next_one_works():
    world = World()
    del world.board.version
    reply = world.send("1", "ping")
    equal(reply["ok"], False)
    assert "AttributeError" in reply["result"]
    equal(world.send("2", "get")["ok"], True)
