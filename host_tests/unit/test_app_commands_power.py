"""Despite a power cut at any flash operation, each command is carried out at most once and answered truthfully.

Commands that require a signature are signed. At the end the broker sends them again, after the board has forgotten
their ids.
"""

import json

import _app_fakes as fakes
import boot_choice
from app import signed
from app.actions import Actions
from app.board import Board
from app.commands import Commands
from app.ledger import Ledger
from app.settings_files import save
from app.telemetry import Telemetry
from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import FULL, equal, raises

HEAP = "8M"
TIMEOUT_S = 1800
CUTS = None if FULL else 12

_KEY = b"k" * 32
# Size of the ledger: a small one soon forgets.
_SIZE = 2
_COMMANDS = (
    ("1", "set", {"key": "interval_ms", "value": 500}),
    ("2", "reboot", {}),
    ("3", "set", {"key": "interval_ms", "value": 700}),
    ("4", "read", {"path": "/settings.json"}),
    ("5", "reboot", {}),
    ("6", "pause", {}),  # answered later, when its sender does not send it again
)


def _payload(n):
    command_id, name, args = _COMMANDS[n]
    command = {"id": command_id, "cmd": name, "args": args}
    if signed.needs_signature(name, args):
        command["counter"] = n + 1
        return signed.sign(_KEY, "pump-7", json.dumps(command).encode())
    return json.dumps(command).encode()


class Died(BaseException):
    """A restart of the board. Not an Exception, which the board would answer."""


class Broker:
    """The side outside the board: the commands that were acknowledged, what was done, and the replies."""

    def __init__(self):
        self.taken = []
        self.replies = {}
        self.done = {}

    def copy(self):
        copied = Broker()
        copied.taken = list(self.taken)
        copied.replies = {key: list(self.replies[key]) for key in self.replies}
        copied.done = dict(self.done)
        return copied

    def take(self, payload):
        reply = json.loads(payload)
        self.replies.setdefault(reply["id"], []).append(reply)


class Client(fakes.Client):
    def __init__(self, broker):
        fakes.Client.__init__(self)
        self._broker = broker

    def publish(self, topic, payload, qos=0, retain=False):
        # Flash first, as the store of the outbox does.
        with open(ROOT + "/outbox", "wb") as file:
            file.write(payload)
        packet_id = fakes.Client.publish(self, topic, payload, qos, retain)
        self._broker.take(payload)
        return packet_id


class Counting(Actions):
    """Actions that count what is carried out for the first time; recover() answers and carries out nothing again."""

    def __init__(self, board, broker):
        Actions.__init__(self, board)
        self._broker = broker

    def run(self, name, args, order):
        if name in ("set", "reboot"):
            self._broker.done[order] = self._broker.done.get(order, 0) + 1
        return Actions.run(self, name, args, order)


def _restart():
    raise Died


def _life(root, broker, ledger_class=Ledger, replayed=False):
    """Run the board until it restarts (False) or is at rest. replayed: commands done long ago come again."""
    boots = boot_choice.read_boots(root, 1)
    boot_choice.begin(boots)
    with open(root + "/settings.json") as file:
        settings = json.load(file)
    settings.setdefault("unsigned_commands", False)
    board = Board(root, settings, boots, "1")
    board.client = client = Client(broker)
    _, board.clock = fakes.clock()
    board.identity = fakes.identity()
    board.telemetry = Telemetry(client, board.identity, board.clock, (), 100, fakes.Log().report)
    board.restart = _restart
    board.actions = Counting(board, broker)
    board.commands = Commands(client, b"r", ledger_class(root + "/state/commands", _SIZE), board.actions)
    try:
        _settle(board)
        for n in range(len(_COMMANDS)):
            if _COMMANDS[n][0] not in broker.taken:
                board.commands.handle(b"c", _payload(n))
                broker.taken.append(_COMMANDS[n][0])
                # Again, at once: a sender or a broker that lost its session may also repeat it.
                board.commands.handle(b"c", _payload(n))
                _settle(board)
        if replayed:
            _replay(board)
    except Died:
        return False
    return True


def _replay(board):
    for n in range(4 * _SIZE):  # with each command, the ledger keeps three older ids
        board.commands.handle(b"c", b'{"id": "flood %d", "cmd": "ping"}' % n)
        _settle(board)
    for n in (1, 4):
        board.commands.handle(b"c", _payload(n))
        _settle(board)


def _settle(board):
    for _ in range(3):
        board.actions.step()
        board.commands.step()
        board.client.acknowledge()


def _lives(root, broker, ledger_class=Ledger):
    for _ in range(12):
        if _life(root, broker, ledger_class):
            return
    raise AssertionError("the board restarts again and again")


def _scenario(ledger_class=Ledger):
    def scenario(root, ledger):
        ledger["broker"] = Broker()
        _lives(root, ledger["broker"], ledger_class)

    return scenario


def _check(root, ledger, ledger_class=Ledger):
    broker = ledger["broker"]
    _lives(root, broker, ledger_class)
    # None of the repeated commands is carried out: one would restart the board.
    assert _life(root, broker.copy(), replayed=True), "an old command was carried out again"
    answered = sorted([each for each in broker.replies if not each.startswith("flood")])
    equal(answered, [command[0] for command in _COMMANDS], "commands that were answered")
    for order in broker.done:
        assert broker.done[order] == 1, "command %d was carried out %d times" % (order, broker.done[order])
    for command_id in ("2", "5"):
        equal(broker.replies[command_id][0]["ok"], True, "reboot")
    for command_id in broker.replies:
        first = broker.replies[command_id][0]
        for reply in broker.replies[command_id]:
            equal((reply["id"], reply["ok"]), (first["id"], first["ok"]), "replies to one command")
    # The file holds the value of the last `set` that was answered with ok.
    with open(root + "/settings.json") as file:
        held = json.load(file).get("interval_ms")
    expected = 1000
    for command_id, value in (("1", 500), ("3", 700)):
        if broker.replies[command_id][0]["ok"]:
            expected = value
    equal(held, expected, "interval_ms in flash")


def _copy(ledger):
    return {"broker": ledger["broker"].copy()} if "broker" in ledger else {}


def _sweep(scenario, geometry, check=_check, **options):
    with PowerCutFlash(geometry, 24) as flash:
        save(ROOT, "settings.json", {"brokers": ["mqtt://b"], "interval_ms": 1000})
        save(ROOT, "secrets.json", {"commands": {"key": "6b" * 32}})
        return flash.sweep(scenario, check, copy=_copy, **options)


def test_commands_are_carried_out_once_and_answered_wherever_the_power_is_cut():
    for geometry in ("esp32", "rp2"):
        print(geometry, _sweep(_scenario(), geometry, most=CUTS, second_cuts=1 if FULL else 0, seed=5))


class Forgetful(Ledger):
    """Planted mistake: a command is recorded only after it was carried out, with its reply."""

    def begin(self, command_id, payload):
        self._late = payload
        self.order += 1
        self._ids[command_id] = self.order
        self._open.append(self.order)
        return self.order

    def command(self, order):
        return json.loads(self._late) if order in self._open and hasattr(self, "_late") else Ledger.command(self, order)

    def finish(self, order, reply):
        self._write("%d" % (order % self._size), order, self._late)
        Ledger.finish(self, order, reply)


class Quiet(Ledger):
    """Planted mistake: a reply counts as delivered before the broker has it."""

    def finish(self, order, reply):
        self._write("sent", order, b"")
        self._sent = order
        Ledger.finish(self, order, reply)


class Uncounted(Ledger):
    """Planted mistake: the next boot does not keep the counter of a command that a power cut interrupted."""

    def command(self, order):
        command = Ledger.command(self, order)
        command.pop("counter", None)
        return command


def test_the_sweep_finds_planted_mistakes():
    for mistake in (Forgetful, Quiet) if FULL else (Forgetful,):
        print(mistake.__name__, raises(AssertionError, _sweep, _scenario(mistake), "esp32", most=CUTS, seed=5))
    if FULL:
        print(raises(AssertionError, _sweep, _scenario(), "esp32", lambda *given: _check(*given, Uncounted)))
