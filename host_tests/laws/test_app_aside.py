"""Messages that a board's broker does not take: reported, shown, and readings of another device id go all the same."""

import json
import os
from binascii import a2b_base64

from app import aside
from app.act_outbox import run
from app.board import Board
from app.commands import CommandError
from app.gaps import Gaps
from app.identity import Identity
from app.signed import needs_signature
from picky_broker import PickyBroker
from umqtt_testkit.portable import equal, new_path, raises
from world import Flash, World

from umqtt_robust.policy import DROP_OLDEST


class OwnTopicsOnly(PickyBroker):
    """A broker that lets a board publish on its own topics alone, as AWS IoT and a rule of RabbitMQ do."""

    own = b"fleet/old/"

    def is_bad(self, topic):
        return not topic.startswith(self.own)


class Log:
    def __init__(self):
        self.lines = []

    def report(self, level, text, fields=None, always=False):
        self.lines.append((level, text))
        return True


class Deployed(World):
    """A world whose program has the firmware's parts for what the outbox drops."""

    device_id = "old"

    def __init__(self, broker, slots=16):
        self.folder = new_path("aside")
        os.mkdir(self.folder)
        self.log = Log()
        World.__init__(self, [broker], flash=Flash(slots), policy=DROP_OLDEST, program=Deployed.boot)

    def boot(self):
        self.board = board = Board(self.folder, {}, None, "0.1.0")
        board.client, board.log = self.client, self.log
        board.identity = Identity(self.device_id, 17, b"12345678")
        board.gaps = Gaps(self.folder + "/gaps", board.identity.boot, self.log.report)
        self.client.on_dropped = board.gaps.on_dropped
        if self.client.quarantined:
            board.gaps.aside = [message[1] for message in self.client.part("quarantine").messages()]

    def step(self, until):
        """Return until(), after what the main loop does with messages that were set aside."""
        if self.board.gaps.aside:
            topics = self.board.gaps.aside
            self.board.gaps.aside = []
            aside.handle(self.board, topics)
        return until()


def _reading(seq):
    return json.dumps({"v": 1, "id": "old", "boot": "1-a", "seq": seq, "m": {}}).encode()


def test_readings_taken_under_another_device_id_go_on_the_own_topics():
    # Planted: what was set aside stays on the topic of the old id; the others of the old id are tried one by one.
    for way in ("close", "reset", "third byte"):
        for reboots in (False, True):
            broker = OwnTopicsOnly(way)
            world = Deployed(broker)
            world.unreachable = True
            for seq in range(9):
                world.client.publish(b"fleet/old/telemetry", _reading(seq), 1)
            Deployed.device_id = "new"
            broker.own = b"fleet/new/"
            world.unreachable = False
            try:
                world.restart()
                for seq in range(9, 12):
                    world.client.publish(b"fleet/new/telemetry", _reading(seq), 1)
                ended = [0]

                def over(world=world, ended=ended, reboots=reboots):
                    links = len(world.of_kind("disconnect"))
                    if reboots and links > ended[0]:
                        ended[0] = links
                        world.restart()
                    return not world.client.pending and len(set(world.taken())) == 12

                assert world.run(lambda world=world, over=over: world.step(over), 3600000), (
                    way,
                    reboots,
                    world.taken(),
                )
            finally:
                Deployed.device_id = "old"
            equal(sorted(set(world.taken())), sorted([(b"fleet/new/telemetry", _reading(seq)) for seq in range(12)]))
            assert broker.links <= 6, broker.links
            equal([text for level, text in world.log.lines if "dropped" in text], [])
            assert [1 for level, text in world.log.lines if level == "error" and "fleet/old/telemetry" in text]
            assert [1 for level, text in world.log.lines if "topics of old" in text]
            equal(world.faults(), [])


def test_the_command_outbox_shows_exports_sends_on_and_drops():
    # Planted: send_on of an id that is not there says that it was done.
    broker = PickyBroker("close")
    world = Deployed(broker)
    sent = [(b"bad/%d" % i, bytes((65 + i,)) * 1000) for i in range(3)]
    ids = [world.client.publish(topic, payload, 1) for topic, payload in sent]
    world.client.publish(b"up/0", b"good", 1)
    assert world.run(lambda: world.step(lambda: not world.client.pending and world.client.quarantined == 3), 3600000)
    world.settle(60000)
    board = world.board
    shown = run(board, {})
    equal((shown["waiting"], shown["count"]), (0, 3))
    equal(sorted(shown["aside"]), [[ids[i], "bad/%d" % i, 1000] for i in range(3)])
    equal(len(run(board, {"after": 2})["aside"]), 1)
    payload = b""
    while len(payload) < 1000:
        piece = run(board, {"export": ids[1], "offset": len(payload)})
        payload += a2b_base64(piece["payload"])
        equal((piece["topic"], piece["bytes"]), ("bad/1", 1000))
    equal(payload, sent[1][1])
    for args in ({"send_on": 999}, {"drop": "x"}, {"export": "x"}, {"export": 999}, {"after": -1}, {"what": 1},
                 {"export": ids[0], "offset": -1}):  # fmt: skip
        raises(CommandError, run, board, args)
    equal(run(board, {"drop": ids[0]}), {"drop": [ids[0]], "waiting": 0})
    broker.picks = False
    equal(sorted(run(board, {"send_on": "all"})["send_on"]), sorted(ids[1:]))
    assert world.run(lambda: not world.client.pending)
    equal(sorted(set(broker.taken)), sorted(sent[1:] + [(b"up/0", b"good")]))
    equal(run(board, {"drop": "all"}), {"drop": [], "waiting": 0})
    equal((world.flash.messages, world.faults()), ({}, []))


def test_what_deletes_or_shows_content_has_to_be_signed():
    # Planted: drop needs no signature.
    equal([needs_signature("outbox", args) for args in ({}, {"send_on": 1}, {"drop": 1}, {"export": 1})],
          [False, False, True, True])  # fmt: skip
