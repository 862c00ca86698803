"""Commands that arrive in a burst, as after an outage, are each carried out and answered, up to the board's limit."""

import json
import os

import boot_choice
from app.actions import Actions
from app.board import Board
from app.clock import Clock
from app.commands import Commands
from app.identity import Identity
from app.ledger import SIZE, Ledger
from app.telemetry import Telemetry
from umqtt_testkit.portable import equal, new_path
from world import Flash, World

from umqtt_robust.policy import DROP_OLDEST

_CMD, _REPLY = b"fleet/pump-7/cmd", b"fleet/pump-7/reply"
_AT_ONCE = 60  # more are refused, to spare the flash: see app.guard
_SETTINGS = {"brokers": ["mqtt://b"], "interval_ms": 1000, "unsigned_commands": True}


class Log:
    def report(self, level, text, fields=None, always=False):
        raise AssertionError(text)


class Commanded(World):
    """A world whose program is the firmware's part for commands, on its own flash folder."""

    def __init__(self, slots, **options):
        self.root = new_path("burst")
        os.mkdir(self.root)
        World.__init__(self, flash=Flash(slots), policy=DROP_OLDEST, program=Commanded.boot, **options)

    def boot(self):
        clock = Clock(self.clock.ticks_ms, self.clock.ticks_diff, None)
        identity = Identity("pump-7", 17, b"12345678")
        boots = boot_choice.read_boots(self.root)
        boot_choice.begin(boots)
        self.board = board = Board(self.root, dict(_SETTINGS), boots, "0.1.0")
        board.client, board.clock, board.identity, board.log = self.client, clock, identity, Log()
        board.telemetry = Telemetry(self.client, board.identity, clock, (), 100, board.log.report)
        board.restart = lambda: None
        board.actions = Actions(board)
        board.commands = Commands(self.client, _REPLY, Ledger(self.root + "/state/commands"), board.actions)
        self.client.on(_CMD, board.commands.handle)
        self.client.on_dropped = lambda packet_id, topic, payload, reason: board.commands.dropped(packet_id)

    def work(self, until, ms=600_000):
        """Let the application's loop run until `until()`, or for `ms`."""
        left = ms
        while left > 0 and not until():
            wait = self.client.tick()
            self.board.actions.step()
            self.board.commands.step()
            if wait > 0 and not self._more():
                wait = min(wait, 50)
                left -= wait
                self.clock.advance(wait)
        return until()

    def answers(self):
        """Return {id: [ok, …]} of the replies that the broker has, without repeated copies."""
        found = {}
        for topic, payload in self.taken():
            if topic == _REPLY:
                reply = json.loads(payload)
                if reply["ok"] not in found.setdefault(reply["id"], []):
                    found[reply["id"]].append(reply["ok"])
        return found


def test_every_command_of_a_burst_is_carried_out_and_answered():
    # Planted: what comes while the ledger is full of replies is refused, and of these only eight are told.
    for qos in (1, 2):
        for readings in (0, 30):
            for waiting in (1, SIZE, SIZE + 1, SIZE + 9, _AT_ONCE):
                about = repr((qos, readings, waiting))
                world = Commanded(64)
                world.client.subscribe(_CMD, qos)
                assert world.work(lambda world=world: world.client.connected and world.client.subscribed)
                world.client.disconnect()
                world.settle()
                for number in range(readings):
                    world.client.publish(b"fleet/pump-7/telemetry", b"%d" % number, 1)
                names = [str(number) for number in range(waiting)]
                for name in names:
                    payload = json.dumps({"id": name, "cmd": "ping"}).encode()
                    assert world.brokers[0].send(b"c", _CMD, payload, qos)
                world.client.connect()
                world.work(lambda world=world, waiting=waiting: len(world.answers()) == waiting)
                equal(world.answers(), {name: [True] for name in names}, about)
                equal((world.board.commands.executed, world.client.dead_letters), (waiting, 0), about)
                sent = [payload for topic, payload in world.taken() if topic == b"fleet/pump-7/telemetry"]
                equal(sent, [b"%d" % number for number in range(readings)], about)
                equal(world.faults(), [], about)


def test_an_open_command_does_not_hold_up_those_behind_it_for_ever():
    # An update takes minutes and needs messages itself. Planted: commands wait also for one that is not finished, as
    # long as the broker owes an acknowledgement of anything.
    world = Commanded(64)
    world.client.subscribe(_CMD, 1)
    assert world.work(lambda: world.client.connected and world.client.subscribed)
    world.board.actions.step = lambda: None  # `pause` is not finished
    names = [str(number) for number in range(3 * SIZE)]
    for name in names:
        if int(name) == SIZE:
            assert world.work(lambda: len(world.answers()) == SIZE - 1 and not world.client.pending)
            world.brokers[0].acknowledge = False
            world.client.publish(b"fleet/pump-7/telemetry", b"unacknowledged", 1)
        payload = json.dumps({"id": name, "cmd": "ping" if int(name) else "pause"}).encode()
        assert world.brokers[0].send(b"c", _CMD, payload, 1)
    assert world.work(lambda: len(world.answers()) >= SIZE, 10_000)
    answers = world.answers()
    equal([answers.get(name) for name in names[: SIZE + 1]], [None] + [[True]] * (SIZE - 1) + [[False]])
    equal(world.faults(), [])
