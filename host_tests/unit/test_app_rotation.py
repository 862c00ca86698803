"""Secrets are rotated completely or not at all, wherever the power is cut; new ones that fail are taken back."""

import hashlib
import json
import os
from binascii import hexlify

import _app_fakes as fakes
import boot_choice
from app import replace, settings_trial, signed
from app.commands import CommandError
from app.health import CONFIRM_MS, TRIAL_MS, Health
from app.log import Log
from app.rotation import Rotation
from app.settings_files import load, read_before, save
from app.status import Status
from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import FULL, equal, new_path, raises

from umqtt_robust.errors import Refused
from umqtt_robust.tls import CertificateRefused

HEAP = "8M"
TIMEOUT_S = 900
CUTS = None if FULL else 8

KEY, NEW_KEY = b"k" * 32, b"n" * 32
_POWER_ON = 1
_OLD_CA, _NEW_CA = "-----BEGIN old-----", "-----BEGIN new-----" + "x" * 600
OLD = {
    "wifi": {"workshop": "old wifi"},
    "mqtt": {"username": "pump-7", "password": "old"},
    "tls": {"ca": "/ca.pem"},
    "commands": {"key": hexlify(KEY).decode()},
}
NEW = {
    "wifi": {"workshop": "new wifi"},
    "mqtt": {"password": "new"},
    "tls": {"ca": _NEW_CA},
    "commands": {"key": hexlify(NEW_KEY).decode()},
}


def sealed(new=NEW, key=KEY):
    """Return the object of a rotation, and the arguments of its command."""
    nonce = b"n" * signed.NONCE_SIZE
    data = nonce + signed.seal(key, nonce, json.dumps(new).encode())
    return data, {"mqtt": True, "sha256": hexlify(hashlib.sha256(data).digest()).decode()}


class Source:
    def __init__(self, data):
        self._data = data

    def open(self, name, offset):
        self._left = self._data[offset:]

    def read(self, buf):
        n = min(len(buf), len(self._left))
        buf[:n] = self._left[:n]
        self._left = self._left[n:]
        return n

    def close(self):
        pass

    end = close


class Telemetry:
    interval_ms = 1000
    paused = False
    seq = first_id = 0


class Commands:
    def __init__(self):
        self.replies = []

    def reply(self, order, ok, result):
        self.replies.append((ok, result))


class Boot:
    """A boot with the files of the folder, at a broker that knows `passwords`. in_force: the secrets in use."""

    def __init__(self, root, passwords=(), data=b""):
        self.folder = root
        self.boots = boots = boot_choice.read_boots(root, _POWER_ON)
        boot_choice.begin(boots)
        self.settings, self.secrets = load(root)
        with open(root + self.secrets["tls"]["ca"]) as file:
            certificate = file.read()
        self.in_force = self.secrets["mqtt"]["password"], certificate, self.secrets["commands"]["key"]
        self.client = fakes.Client()
        self.client.transports = None
        self.ticks, self.clock = fakes.clock()
        self.telemetry, self.commands = Telemetry(), Commands()
        self.restarts = 0
        identity = fakes.identity()
        self.health = Health(self.client, self.clock, self.telemetry, boots, self.restart, Status(identity, "1"))
        self.log = Log(self.client, identity, self.clock, write=lambda line: None)
        self.trial = settings_trial.Trial(self) if settings_trial.on_trial(root) else None
        self.rotation = Rotation(self)
        self.rotation._open_source = lambda args: setattr(self.rotation, "_source", Source(data))
        if self.secrets["mqtt"]["password"] in passwords:
            self.telemetry.first_id = self.client.publish(b"t", b"r", 1)
            self.client.acknowledge()
            self.client.on_acknowledged(self.telemetry.first_id)

    def restart(self):
        self.restarts += 1

    def run(self, ms=TRIAL_MS + 2000):
        for _ in range(ms // 1000):
            self.ticks.advance(1000)
            self.telemetry.seq += 1
            self.health.step()
            if self.trial:
                self.trial.step()
            while self.rotation.busy and not self.restarts and self.rotation.step() == 0:
                pass
            if self.restarts:
                break
        return self


def fresh(root=None):
    root = root or new_path("rotation")
    if root != ROOT:
        os.mkdir(root)
    save(root, "settings.json", {"brokers": ["mqtts://b"]})
    save(root, "secrets.json", OLD)
    with open(root + "/ca.pem", "w") as file:
        file.write(_OLD_CA)
    return root


_BEFORE = ("old", _OLD_CA, OLD["commands"]["key"])
_AFTER = ("new", _NEW_CA, NEW["commands"]["key"])


def rotate(root, new=NEW, key=KEY):
    data, args = sealed(new, key)
    boot = Boot(root, ("old",), data)
    boot.rotation.begin(args, 1)
    return boot.run(), args


def end(root, passwords, args):
    """Boot until nothing is on trial; return the secrets in use, and the replies of the last boot."""
    for _ in range(4):
        boot = Boot(root, passwords)
        boot.rotation.recover(args, 1)
        boot.run()
        if not boot.restarts and not settings_trial.on_trial(root):
            return boot.in_force, boot.commands.replies
    raise AssertionError("the secrets stay on trial")


def pem_files(root):
    return sorted([name for name in os.listdir(root) if name.endswith(".pem")])


def test_new_secrets_are_tried_and_stay_when_they_deliver():
    """Planted: the trial ends in the boot that got the command; the old authority stays in flash."""
    root = fresh()
    told, args = rotate(root)
    equal((told.restarts, told.in_force, told.commands.replies), (1, _BEFORE, []))
    boot = Boot(root, ("new",))
    equal(boot.in_force, _AFTER)
    boot.run(CONFIRM_MS // 2)
    equal(settings_trial.on_trial(root), ["secrets.json.was"])
    equal(end(root, ("new",), args), (_AFTER, [(True, {"rotated": args["sha256"]})]))
    equal(pem_files(root), ["ca-2.pem"])
    equal(load(root)[1]["wifi"], {"workshop": "new wifi"})
    # A second rotation, with the new key; it may use a third path.
    _, args = rotate_again(root)
    equal(end(root, ("newer",), args)[0], ("newer", _OLD_CA, _AFTER[2]))
    equal(pem_files(root), ["ca.pem"])


def rotate_again(root):
    data, args = sealed({"mqtt": {"password": "newer"}, "tls": {"ca": _OLD_CA}}, NEW_KEY)
    boot = Boot(root, ("new",), data)
    boot.rotation.begin(args, 2)
    return boot.run(), args


def test_secrets_that_the_broker_does_not_take_go_back_and_the_reply_says_so():
    """Planted: secrets on trial stay after TRIAL_MS."""
    root = fresh()
    _, args = rotate(root)
    in_force, replies = end(root, ("old",), args)
    equal((in_force, [ok for ok, _ in replies]), (_BEFORE, [False]))
    assert "as before" in replies[0][1], replies
    equal(pem_files(root), ["ca.pem"])


def test_a_refusal_ends_the_trial_at_once_and_an_outage_does_not():
    """Planted: the board waits for TRIAL_MS after a refusal; any error ends the trial."""
    for error, seconds in (
        (Refused("connect", 4), 1),
        (Refused("connect", 5), 1),
        (CertificateRefused("not signed"), 1),
        (Refused("connect", 3), TRIAL_MS // 1000),
        (OSError(111), TRIAL_MS // 1000),
    ):
        root = fresh()
        rotate(root)
        boot = Boot(root)
        boot.client.connected = False
        boot.log.failed(error)
        boot.run((seconds - 1) * 1000)
        equal(boot.restarts, 0, repr(error))
        boot.run(2000)
        equal((boot.restarts, Boot(root).in_force), (1, _BEFORE), repr(error))


def test_what_cannot_be_used_is_refused_before_anything_is_changed():
    """Planted: an object sealed with another key is accepted; a value is not checked."""
    for new, key, why in (
        (NEW, NEW_KEY, "cannot be opened"),
        ([], KEY, "must be an object"),
        ({"colour": {}}, KEY, "unknown key"),
        ({"mqtt": "x"}, KEY, "must be an object"),
        ({"mqtt": {"password": 7}}, KEY, "must be text"),
        ({"commands": {"key": "abc"}}, KEY, "64 hexadecimal"),
        ({"wifi": {"workshop": "short"}}, KEY, "8 to 63"),
        ({"tls": {"cert": "-----BEGIN"}}, KEY, "tls.key"),
        ({"tls": {"ca": 7}}, KEY, "must be text"),
        ({"tls": {"colour": "x"}}, KEY, "unknown key"),
        ({"tls": {"ca": "x" * 9000}}, KEY, "more than"),
    ):
        root = fresh()
        boot, _ = rotate(root, new, key)
        equal((boot.restarts, Boot(root).in_force), (0, _BEFORE), why)
        equal([ok for ok, _ in boot.commands.replies], [False], why)
        assert why in boot.commands.replies[0][1], (why, boot.commands.replies)
        equal((pem_files(root), settings_trial.on_trial(root)), (["ca.pem"], []), why)
        assert "rotation" not in os.listdir(root + "/state")


def test_an_object_that_the_broker_puts_in_its_place_is_refused():
    root = fresh()
    _, args = sealed()
    boot = Boot(root, ("old",), sealed({"mqtt": {"password": "evil"}})[0])
    boot.rotation.begin(args, 1)
    boot.run()
    equal((boot.restarts, Boot(root).in_force), (0, _BEFORE))
    assert "another hash" in boot.commands.replies[0][1]
    raises(CommandError, Boot(root).rotation.begin, {"mqtt": True, "sha256": "x"}, 1)
    raises(CommandError, Boot(root).rotation.begin, {"sha256": args["sha256"]}, 1)


def test_a_rotation_during_a_trial_goes_back_to_the_last_secrets_that_worked():
    root = fresh()
    rotate(root)
    rotate_again(root)
    equal(Boot(root).in_force[0], "newer")
    Boot(root).run()
    equal(Boot(root).in_force, _BEFORE)


# The power cut at every flash operation


def _sweep(passwords, expected, geometry):
    data, args = sealed()

    def scenario(root, ledger):
        boot = Boot(root, ("old",), data)
        boot.rotation.begin(args, 1)
        # The updater treats a power cut as an error of the flash.
        if not boot.run().restarts:
            return
        ledger["told"] = True
        ledger["replies"] = end(root, passwords, args)[1]

    def check(root, ledger):
        # The secrets in use are complete at any moment: Boot reads all of them.
        assert Boot(root).in_force in (_BEFORE, _AFTER)
        # So are those that a trial may return to.
        for path in settings_trial.certificates(read_before(root, "secrets.json")):
            os.stat(root + path)
        in_force, replies = end(root, passwords, args)
        assert in_force == expected or in_force == _BEFORE and not ledger.get("told"), in_force
        for ok, _ in replies + ledger.get("replies", []):
            equal(ok, in_force == _AFTER, "the reply")

    with PowerCutFlash(geometry, 80) as flash:
        fresh(ROOT)
        return flash.sweep(scenario, check, most=CUTS, second_cuts=0 if CUTS else 1, seed=5)


def test_a_power_cut_at_any_flash_operation_leaves_secrets_that_the_broker_knows():
    for geometry in ("esp32", "rp2") if FULL else ("esp32",):
        print(geometry, "accepted", _sweep(("new",), _AFTER, geometry))
        print(geometry, "given back", _sweep(("old",), _BEFORE, geometry))


def _over_the_old_one(name, used):
    """Planted mistake: the new certificate overwrites the old one."""
    return "/%s.pem" % name


def _too_early(folder):
    """Planted mistake: certificates are removed before the secrets that name them."""
    for name in pem_files(folder):
        if "/" + name in settings_trial.certificates(read_before(folder, "secrets.json")):
            os.remove(folder + "/" + name)
    for name in settings_trial.on_trial(folder):
        os.remove(folder + "/" + name)


def test_the_sweep_finds_planted_mistakes():
    for module, name, mistake, passwords, expected in (
        (replace, "_unused_path", _over_the_old_one, ("new",), _AFTER),
        (settings_trial, "accept", _too_early, ("new",), _AFTER),
    ):
        before = getattr(module, name)
        setattr(module, name, mistake)
        try:
            print(name, raises((AssertionError, OSError), _sweep, passwords, expected, "esp32"))
        finally:
            setattr(module, name, before)
