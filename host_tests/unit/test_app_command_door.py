"""The code for commands is loaded when one arrives or was left unfinished, and unloaded afterwards."""

import json
import os
import sys

import _app_fakes as fakes
import boot_choice
from app.board import Board
from app.build_radio import is_unfinished
from app.command_door import CommandDoor
from umqtt_testkit.portable import equal, new_path

_CMD = b"fleet/pump-7/cmd"
_REPLY = b"fleet/pump-7/reply"


def _and_put_back(test):
    # Other tests of this process continue with the modules that they have loaded.
    def run():
        package = sys.modules["app"]
        before = {name: sys.modules[name] for name in sys.modules if name.startswith("app.")}
        try:
            test()
        finally:
            for name in before:
                sys.modules[name] = before[name]
                setattr(package, name[4:].split(".")[0], before[".".join(name.split(".")[:2])])

    return run


class World:
    def __init__(self, root=None):
        self.root = root or new_path("door")
        if not root:
            os.mkdir(self.root)
        boots = boot_choice.read_boots(self.root)
        boot_choice.begin(boots)
        self.client = fakes.Client()
        self.ticks, clock = fakes.clock()
        self.board = board = Board(self.root, {"brokers": ["mqtt://b"], "unsigned_commands": True}, boots, "1")
        board.client, board.clock, board.identity = self.client, clock, fakes.identity()
        board.restart = lambda: None
        path = self.root + "/state/commands"
        board.commands = self.door = CommandDoor(board, path, is_unfinished(path))

    def send(self, command_id, name):
        self.door.handle(_CMD, json.dumps({"id": command_id, "cmd": name}).encode())
        self.door.step()

    def replies(self):
        return [json.loads(payload)["id"] for payload in self.client.payloads(_REPLY)]

    def run(self, ms):
        for _ in range(ms // 1000):
            self.ticks.advance(1000)
            self.door.step()


@_and_put_back
def test_a_board_that_is_told_nothing_loads_nothing():
    world = World()
    world.run(5000)
    equal((world.door._commands, world.door.busy), (None, False))


@_and_put_back
def test_it_is_let_go_of_when_the_broker_has_the_reply_and_not_before():
    world = World()
    world.send("1", "ping")
    world.run(60_000)
    assert world.door.busy and "app.commands" in sys.modules
    world.client.acknowledge()
    world.run(60_000)
    equal((world.door._commands, world.door.busy, world.replies()), (None, False, ["1"]))
    assert "app.commands" not in sys.modules and "app.ledger" not in sys.modules
    world.send("1", "ping")
    equal(world.replies(), ["1", "1"])


@_and_put_back
def test_what_the_run_before_left_open_is_answered_at_the_start():
    world = World()
    world.send("1", "reboot")
    again = World(world.root)
    equal(again.door.busy, True)
    again.door.step()
    equal(again.replies(), ["1"])
    # Without an acknowledgement the reply is sent again after the next start; with one it is not.
    again = World(world.root)
    again.door.step()
    again.client.acknowledge()
    again.door.step()
    equal(again.replies(), ["1"])
    equal(World(world.root).door.busy, False)


@_and_put_back
def test_a_command_that_finds_no_memory_is_answered_and_may_come_again():
    world = World()

    def no_memory():
        raise MemoryError

    load = world.door._load
    world.door._load = no_memory
    world.send("1", "ping")
    for payload in (b"{", b"[]", b"\xff"):
        world.door.handle(_CMD, payload)
    equal((world.replies(), world.door.refused), (["1"], 4))
    # There is no memory even for the reply: that is counted, and does not stop the board.
    publish = world.client.publish
    world.client.publish = lambda *arguments, **options: no_memory()
    world.send("1", "ping")
    equal((world.replies(), world.door.refused), (["1"], 5))
    world.client.publish = publish
    world.door._load = load
    world.send("1", "ping")
    equal(world.replies(), ["1", "1"])
