"""Desired settings, retained and so sent by the broker at every start, are applied once, and reported."""

import json
import os

import _app_fakes as fakes
import boot_choice
from app.act_set import apply
from app.board import Board
from app.build_radio import is_unfinished
from app.command_door import CommandDoor
from app.commands import NotNow
from app.reported import report
from app.settings import check_settings
from app.settings_files import load, save
from app.settings_trial import give_back
from app.telemetry import Telemetry
from umqtt_testkit.portable import equal, new_path

_DESIRED = b"fleet/pump-7/desired"
_REPLY = b"fleet/pump-7/reply"
_REPORTED = b"fleet/pump-7/reported"


class World:
    """A board; boot() restarts it."""

    def __init__(self):
        self.root = new_path("desired")
        os.mkdir(self.root)
        save(self.root, "settings.json", {"brokers": ["mqtt://b"], "unsigned_commands": True})
        self.client = fakes.Client()
        self.restarts = set()  # the boots that asked for a restart
        self.boot()

    def boot(self):
        self.ticks, clock = fakes.clock()
        boots = boot_choice.read_boots(self.root)
        boot_choice.begin(boots)
        self.board = board = Board(self.root, load(self.root)[0], boots, "1")
        board.client, board.clock, board.identity, board.log = self.client, clock, fakes.identity(), fakes.Log()
        board.telemetry = Telemetry(self.client, board.identity, clock, (), 100, board.log.report)
        board.restart = self._restart
        path = self.root + "/state/commands"
        board.commands = self.door = CommandDoor(board, path, is_unfinished(path))

    def _restart(self):
        self.restarts.add(self.board.boots.count)

    def desire(self, number, settings):
        """Deliver the retained message; return how many replies the broker got, and the last one."""
        before = len(self.client.payloads(_REPLY))
        payload = json.dumps({"id": str(number), "cmd": "set", "args": {"settings": settings}}).encode()
        self.door.handle(_DESIRED, payload)
        self.door.step()
        self.client.acknowledge()
        self.door.step()
        replies = self.client.payloads(_REPLY)[before:]
        return len(replies), json.loads(replies[-1]) if replies else None

    def in_flash(self):
        return load(self.root)[0]


def test_it_is_carried_out_once_however_often_it_comes():
    """Planted: every start carries it out; its id is in RAM alone."""
    world = World()
    equal(world.desire(1, {"interval_ms": 500}), (1, {"id": "1", "ok": True,
          "result": {"changed": ["interval_ms"], "applies": "now"}}))  # fmt: skip
    for _ in range(3):
        equal(world.desire(1, {"interval_ms": 500}), (0, None))
        world.boot()
        equal(world.desire(1, {"interval_ms": 500}), (0, None))
    # If the record is lost or damaged by a power cut, the id identifies it: the reply comes again, and nothing else.
    for torn in (b"", b"\0", b"\xff" * 4):
        with open(world.root + "/state/commands/desired", "wb") as file:
            file.write(torn)
        world.boot()
        equal(world.desire(1, {"interval_ms": 500})[0], 1)
        equal(world.desire(1, {"interval_ms": 500})[0], 0)
    equal((world.in_flash()["interval_ms"], len(world.restarts)), (500, 0))
    # The retained message was deleted.
    world.door.handle(_DESIRED, b"")
    equal(world.desire(1, {"interval_ms": 500}), (0, None))


def test_what_cannot_be_carried_out_now_is_asked_for_again():
    """Planted: it counts as seen; it is asked for at once, without end."""
    world = World()
    asked = []
    world.client.subscribe = lambda topic, qos: asked.append((topic, qos))
    check = world.door._load() and world.door._actions.authorize

    def no_memory(*_):
        raise NotNow("not enough memory")

    world.door._actions.authorize = no_memory
    equal(world.desire(1, {"interval_ms": 500})[1]["ok"], False)
    equal(world.in_flash()["interval_ms"], 60_000)
    world.ticks.advance(59_999)
    world.door.step()
    equal(asked, [])
    for _ in range(3):
        world.ticks.advance(1)
        world.door.step()
    equal(asked, [(_DESIRED, 1)])
    world.door._load()
    world.door._actions.authorize = check
    equal(world.desire(1, {"interval_ms": 500})[1]["ok"], True)
    world.ticks.advance(600_000)
    world.door.step()
    equal((world.in_flash()["interval_ms"], len(asked)), (500, 1))


def test_what_counts_from_the_next_boot_on_restarts_the_board_once_and_is_on_trial():
    """Planted: settings that were taken back are applied again at the next start."""
    world = World()
    wanted = {"interval_ms": 500, "keep_alive": 30, "expires_s": 0}
    count, reply = world.desire(1, wanted)
    equal(reply["result"], {"changed": ["interval_ms", "keep_alive"], "applies": "after reboot"})
    equal(len(world.restarts), 1)
    world.boot()
    equal((world.board.settings["keep_alive"], world.desire(1, wanted), len(world.restarts)), (30, (0, None), 1))
    assert give_back(world.root, 1)
    world.boot()
    equal((world.desire(1, wanted), world.in_flash()["keep_alive"], len(world.restarts)), ((0, None), 60, 1))
    # Settings that are already as desired cause no restart.
    equal(world.desire(2, {"keep_alive": 60})[1]["result"], {"changed": [], "applies": "now"})
    equal(len(world.restarts), 1)


def test_all_of_it_or_nothing():
    """Planted: keys are set one after the other."""
    world = World()
    before = world.in_flash()
    for n, wrong in enumerate(({"keep_alive": -1}, {"colour": 1}, {"unsigned_commands": False}, {"sensors": {}})):
        settings = {"interval_ms": 500, "expires_s": 9}
        settings.update(wrong)
        _, reply = world.desire(n, settings)
        equal((reply["ok"], world.in_flash(), world.board.settings["interval_ms"]), (False, before, 60_000), wrong)
    for n, wrong in enumerate(([], "interval_ms", 5, None)):
        _, reply = world.desire(10 + n, wrong)
        equal((reply["ok"], world.in_flash()), (False, before))


def test_the_settings_are_reported_once_something_was_desired_and_whenever_they_change():
    """Planted: a report that the outbox gave up is not sent again."""
    world = World()
    equal(world.board.unreported, None)
    apply(world.board, check_settings({"brokers": ["mqtt://b"], "unsigned_commands": True}), "log_level")
    equal(world.board.unreported, None)
    world.desire(1, {"interval_ms": 500})
    equal(world.board.unreported, True)
    world.client.room = 0
    report(world.board)
    equal((world.board.unreported, world.client.payloads(_REPORTED)), (True, []))
    world.client.room = 100
    report(world.board)
    topic, payload, qos, retain = world.client.published[-1]
    equal((world.board.unreported, topic, qos, retain), (False, _REPORTED, 1, True))
    told = json.loads(payload)
    equal((told["settings"], told["boot"]), (world.in_flash(), world.board.identity.boot))
    world.board.status = Status
    world.board.dropped(1, _REPORTED)
    equal(world.board.unreported, True)
    world.board.unreported = False
    apply(world.board, world.board.settings, "log_level")
    equal(world.board.unreported, True)


class Status:
    topic = b"fleet/pump-7/status"
