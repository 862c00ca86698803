"""Nothing that the broker's owner can send takes a board out of its owner's control; attacks are printed."""

import json
import os
from binascii import unhexlify

import _app_fakes as fakes
import boot_choice
from app import signed
from app.actions import Actions
from app.board import Board
from app.commands import Commands
from app.ledger import SIZE, Ledger
from app.settings import check_settings
from app.settings_files import save
from app.telemetry import Telemetry
from umqtt_testkit.portable import equal, new_path

HEAP = "4M"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
_REPLY = b"fleet/pump-7/reply"
_HEX_KEY = "6b" * 32
_SETTINGS = {"brokers": ["mqtts://b"], "wifi": ["workshop"], "update_url": "https://b/"}
_SECRETS = {
    "wifi": {"workshop": "a wifi password"},
    "mqtt": {"username": "pump-7", "password": "an mqtt password"},
    "tls": {"ca": "/ca.pem"},
    "commands": {"key": _HEX_KEY},
}
_SHA256 = "0" * 64
# Commands that can take a board out of its owner's control: (command, arguments).
_GUARDED = (
    ("reboot", {}),
    ("update", {"mqtt": True, "sha256": _SHA256, "version": "9"}),
    ("update", {"rollback": True, "from": "base"}),
    ("rotate", {"mqtt": True, "sha256": _SHA256}),
    ("set", {"key": "brokers", "value": ["mqtts://evil"]}),
    ("set", {"key": "wifi", "value": ["evil"]}),
    ("set", {"key": "update_url", "value": None}),
    ("set", {"key": "device_id", "value": "evil"}),
    ("set", {"key": "ntp_host", "value": "evil"}),
    ("set", {"key": "sleep_s", "value": 604800}),
    ("set", {"key": "sensors", "value": [{"module": "supply", "pin": 29}]}),
    ("set", {"key": "unsigned_commands", "value": True}),
    # Readings more frequent than the default wear out the flash; those that expire are lost while a broker is silent.
    ("set", {"key": "interval_ms", "value": 999}),
    ("set", {"key": "interval_ms", "value": 10}),
    ("set", {"settings": {"interval_ms": 10, "log_level": "debug"}}),
    ("set", {"key": "expires_s", "value": 1}),
    ("set", {"settings": {"interval_ms": 5000, "brokers": ["mqtts://evil"]}}),
    ("set", {"settings": {"brokers": ["mqtts://evil"]}, "key": "interval_ms", "value": 5000}),
)


class World:
    """A board with a key; boot() restarts it. `counter` is the owner's."""

    def __init__(self, secrets=_SECRETS, **settings):
        self.root = new_path("attacks")
        os.mkdir(self.root)
        merged = dict(_SETTINGS)
        merged.update(settings)
        save(self.root, "settings.json", merged)
        save(self.root, "secrets.json", secrets)
        self.counter = self.number = self.restarts = 0
        self.boot()
        self.files = self.read_files()

    def boot(self):
        self.ticks, clock = fakes.clock()
        boots = boot_choice.read_boots(self.root, 1)
        boot_choice.begin(boots)
        with open(self.root + "/settings.json") as file:
            settings = check_settings(json.load(file))
        self.client = fakes.Client()
        self.client.transports = {}
        self.board = board = Board(self.root, settings, boots, "0.1.0")
        board.client, board.clock, board.identity, board.log = self.client, clock, fakes.identity(), fakes.Log()
        board.telemetry = Telemetry(self.client, board.identity, clock, (), 100, board.log.report)
        board.restart = self._restart
        actions = Actions(board)
        board.commands = self.commands = Commands(self.client, _REPLY, Ledger(self.root + "/state/commands"), actions)
        self.commands.step()

    def _restart(self):
        self.restarts += 1

    def read_files(self):
        return [open(self.root + "/" + name).read() for name in ("settings.json", "secrets.json")]

    def text(self, name, args, **fields):
        self.number += 1
        command = {"id": str(self.number), "cmd": name, "args": args}
        command.update(fields)
        return json.dumps(command).encode()

    def by_owner(self, name, args, key=KEY, device_id="pump-7"):
        """Return the payload of a command that the owner signs."""
        self.counter += 1
        return signed.sign(key, device_id, self.text(name, args, counter=self.counter))

    def send(self, payload):
        """Hand the payload to the board; return its reply, or None."""
        before = len(self.client.published)
        self.commands.handle(b"c", payload)
        self.commands.step()
        self.client.acknowledge()
        self.commands.step()
        replies = self.client.published[before:]
        return json.loads(replies[-1][1]) if replies else None

    def untouched(self):
        return self.restarts == 0 and not self.board.update and self.files == self.read_files()

    def refuses(self, attack, payload, why=""):
        reply = self.send(payload)
        assert reply and not reply["ok"] and why in reply["result"], (attack, reply)
        assert self.untouched(), attack


def _told(attack):
    print("refused:", attack)


def test_what_takes_a_board_away_is_refused_unsigned_and_signed_by_others():
    """Planted: reboot needs no signature; the signature does not cover the device; any mac is accepted."""
    world = World()
    for name, args in _GUARDED:
        what = "%s %s" % (name, args.get("key", ""))
        world.refuses(what, world.text(name, args), "must be signed")
        world.refuses(what, world.by_owner(name, args, OTHER_KEY), "signature is wrong")
        world.refuses(what, world.by_owner(name, args, KEY, "pump-8"), "signature is wrong")
        _told(what + " unsigned, signed with another key, signed for another device")


def test_a_signed_command_cannot_be_changed():
    """Planted: the mac covers args alone."""
    world = World()
    payload = world.by_owner("reboot", {})
    for i in range(len(payload)):
        changed = bytearray(payload)
        changed[i] ^= 1
        world.send(bytes(changed))
        assert world.untouched(), changed
    for i in range(len(payload)):
        world.send(payload[:i])
        assert world.untouched(), i
    _told("a signed reboot with any byte changed, or cut off anywhere")
    tail = payload[payload.index(b',"mac"') : -1]
    # Nor can a broker write the same command differently: with a mac that is not the last member, or twice, or with
    # spaces.
    for other in (
        payload[:-1] + b',"cmd":"reboot"}',
        payload[:-1] + b" }",
        payload + b" ",
        payload.replace(b',"mac":"', b', "mac": "'),
        b'{"id":"x","cmd":"reboot"' + tail + b"}",
        payload[: -len(tail) - 1] + b',"cmd":"reboot"' + tail + b"}",
        b'{"cmd":"reboot","id":"y","x":' + payload + b"}",
    ):
        world.send(other)
        assert world.untouched(), other
    _told("a signature put elsewhere")


def test_an_old_command_that_comes_again_is_refused():
    """Planted: only the ids that the ledger remembers are refused; the counter is in RAM alone."""
    world = World()
    payloads = [world.by_owner("set", {"key": "keep_alive", "value": 100 + n}) for n in range(3)]
    for payload in payloads:
        assert world.send(payload)["ok"]
    world.files = world.read_files()
    for way in ("at once", "after a reboot", "when the board has forgotten its id", "after a further reboot"):
        for payload in payloads:
            reply = world.send(payload)
            assert reply["ok"] if way in ("at once", "after a reboot") else not reply["ok"], (way, reply)
            assert world.untouched(), way
        if way == "after a reboot":
            for _ in range(SIZE):
                assert world.send(world.text("ping", {}))["ok"]
        world.boot()
        known = way in ("at once", "after a reboot")
        _told("a signed command that comes again %s%s" % (way, ": its reply goes again" if known else ""))
    first = world.by_owner("reboot", {})
    assert world.send(world.by_owner("set", {"key": "keep_alive", "value": 7}))["ok"]
    world.files = world.read_files()
    world.refuses("held back", first, "is used up")
    _told("a signed command that was held back until a later one was carried out")


def test_the_counter_cannot_be_spoilt_by_who_has_no_key():
    """Planted: the counter of an unsigned command is kept when the command is recovered."""
    world = World()
    for payload in (
        world.text("ping", {}, counter=1 << 50),
        world.text("ping", {}, counter=1 << 50).replace(b"counter", b"\\u0063ounter"),
        world.text("ping", {}, mac="0" * 64),
        signed.sign(OTHER_KEY, "pump-7", world.text("ping", {}, counter=1 << 50)),
        signed.sign(KEY, "pump-7", world.text("reboot", {}, counter=1 << 60)),
        signed.sign(KEY, "pump-7", world.text("reboot", {}, counter="7")),
        signed.sign(KEY, "pump-7", world.text("reboot", {}, counter=True)),
        signed.sign(KEY, "pump-7", world.text("reboot", {})),
    ):
        world.refuses("counter", payload)
        world.boot()
    assert world.send(world.by_owner("set", {"key": "keep_alive", "value": 7}))["ok"]
    _told("a counter so high that the owner could not go on")


def test_no_command_makes_the_board_less_safe_not_even_a_signed_one():
    """Planted: brokers are accepted with any scheme; unsigned_commands is a setting like any other."""
    world = World()
    for name, args, why in (
        ("set", {"key": "brokers", "value": ["mqtt://b"]}, "from mqtts to mqtt"),
        ("set", {"key": "brokers", "value": ['mqtt://a"mqtts:1883']}, "from mqtts to mqtt"),
        ("set", {"key": "brokers", "value": ["mqtts://b", "mqtt://b"]}, "must not be mixed"),
        ("set", {"key": "brokers", "value": None}, "from mqtts to mqtt"),
        ("set", {"key": "unsigned_commands", "value": True}, "over the cable alone"),
        ("set", {"key": "unsigned_commands", "value": None}, "over the cable alone"),
        ("set", {"settings": {"unsigned_commands": True}}, "over the cable alone"),
        ("set", {"settings": {"interval_ms": 5000, "brokers": ["mqtt://b"]}}, "from mqtts to mqtt"),
        ("set", {"settings": {"interval_ms": 5000, "brokers": None}}, "from mqtts to mqtt"),
        ("set", {"settings": "interval_ms", "key": "interval_ms", "value": 5}, "must be an object"),
        ("update", {"mqtt": True, "sha256": _SHA256, "version": "0.0.9"}, "is older than"),
        ("update", {"url": "http://b/", "sha256": _SHA256, "version": "9"}, "may only come from"),
        ("rotate", {"url": "http://b/", "sha256": _SHA256}, "may only come from"),
        ("rotate", {"mqtt": True, "sha256": "x"}, "sha256"),
    ):
        reply = world.send(world.by_owner(name, args))
        assert not reply["ok"] and why in reply["result"], (args, reply)
        assert world.restarts == 0 and world.files == world.read_files(), args
        _told("signed: %s %s" % (name, args))


def test_a_board_without_a_key_obeys_nobody_unless_the_cable_said_so():
    """Planted: a board without a key accepts unsigned commands."""
    world = World({"tls": {"ca": "/ca.pem"}})
    for name, args in _GUARDED:
        world.refuses(name, world.text(name, args), "must be signed")
        world.refuses(name, world.by_owner(name, args), "has no key")
    _told("everything that needs a signature, by a board that has no key")
    world = World({"tls": {"ca": "/ca.pem"}}, unsigned_commands=True)
    assert world.send(world.text("set", {"key": "keep_alive", "value": 7}))["ok"]


def test_no_secret_leaves_the_board():
    """Planted: the read command accepts every path below the root."""
    world = World()
    world.send(world.by_owner("set", {"key": "keep_alive", "value": 7}))
    save(world.root, "secrets.json.was", _SECRETS)
    for name in ("ca.pem", "key.pem", "key-2.pem"):
        with open(world.root + "/" + name, "w") as file:
            file.write("-----BEGIN")
    for path in (
        "/secrets.json", "secrets.json", "//secrets.json", "/./secrets.json", "/app/../secrets.json",
        "/secrets.json.was", "/secrets.json.new", "/SECRETS.JSON", "/state/../secrets.json",
        "/ca.pem", "/key.pem", "/key-2.pem", "/state/mqtt",
    ):  # fmt: skip
        world.send(world.text("read", {"path": path}))
        _told("read " + path)
    for name, args in (("get", {}), ("get", {"key": "commands"}), ("log", {}), ("crash", {}), ("ping", {}),
                       ("read", {"path": "/"}), ("read", {"path": "/settings.json"}), ("read", {"path": "/state"})):
        world.send(world.text(name, args))
    for name in os.listdir(world.root + "/state/commands"):
        world.send(world.text("read", {"path": "/state/commands/" + name}))
    for _, payload, _, _ in world.client.published:
        for secret in ("a wifi password", "an mqtt password", _HEX_KEY, "-----BEGIN"):
            assert secret not in payload.decode(), payload
    _told("any reply with a password or a key in it")


def test_a_flood_of_commands_ends_in_answers_and_not_in_a_crash():
    world = World()
    for payload in (b"", b"[" * 900, b"{" * 900, b'{"id":' * 100, b"\xff" * 900, b"x" * 901, b'{"id":"1"}', b"null",
                    b'{"id":"%s","cmd":"ping"}' % (b"x" * 65), b'{"id":"1","cmd":"ping","args":[]}'):  # fmt: skip
        for _ in range(20):
            world.commands.handle(b"c", payload)
        assert world.untouched()
    equal(world.send(world.text("ping", {}))["ok"], True)
    _told("commands that are none, 200 of them")


def test_commands_cannot_wear_out_the_flash():
    """Planted: any number of unsigned commands is kept in flash; signed commands count towards the limit too."""
    world = World()
    carried_out = [world.send(world.text("ping", {}))["ok"] for _ in range(200)].count(True)
    equal(carried_out, 60)
    _told("200 commands at once: 60 are carried out, then one every 5 s")
    for wait_ms, expected in ((4999, 0), (1, 1), (60_000, 12)):
        world.ticks.advance(wait_ms)
        equal([world.send(world.text("get", {}))["ok"] for _ in range(20)].count(True), expected)
    reply = world.send(world.text("ping", {}))
    equal(reply["result"].split(";")[1], " send it again under another id in 5 s")
    # The owner can always reach the board, and a repeated command gets its reply again.
    again = world.by_owner("set", {"key": "keep_alive", "value": 7})
    assert world.send(again)["ok"] and world.send(again)["ok"]


def test_signatures_are_hmac_sha_256_by_the_vectors_of_rfc_4231():
    for key, data, expected in (
        (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    ):
        equal(signed.hmac(key, data), unhexlify(expected))


def test_a_sealed_secret_opens_with_its_key_and_nonce_alone():
    data = bytes(range(256)) * 3
    nonce = b"n" * signed.NONCE_SIZE
    sealed = signed.seal(KEY, nonce, data)
    equal(signed.seal(KEY, nonce, sealed), data)
    for key, other in ((OTHER_KEY, nonce), (KEY, b"m" * signed.NONCE_SIZE)):
        assert signed.seal(key, other, sealed) != data
    # No part of the pad occurs twice.
    pads = [sealed[i : i + 32] for i in range(0, 256, 32)]
    again = [sealed[i : i + 32] for i in range(256, 512, 32)]
    assert not [one for one, other in zip(pads, again) if one == other]
