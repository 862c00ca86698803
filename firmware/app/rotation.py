"""Installs new passwords, certificates and keys over the air: sealed, tried at the next boot, undone if that fails.

    {"cmd": "rotate", "args": {"mqtt": true, "sha256": "…"}}      or "url", as in an update

sha256 names an object that is fetched like the files of an update: a nonce of 16 bytes, then, sealed with this
board's key (signed.py), a JSON object of the changed sections of secrets.json, certificates and private keys as PEM:

    {"mqtt": {"password": "…"}, "tls": {"ca": "-----BEGIN…"}, "wifi": {"workshop": "…"}, "commands": {"key": "…"}}

Replacing one file, secrets.json, switches to the new secrets: each new certificate gets an unused path. The old
secrets stay in secrets.json.was until the new ones have delivered readings for a minute (settings_trial.py). So a
power cut at any moment leaves the old or the new ones, complete, and the reply says which.
"""

import json
import os
from binascii import unhexlify

from app import signed
from app.commands import CommandError
from app.replace import replace
from app.settings import FILE, SECRETS
from app.settings_files import read
from app.settings_trial import on_trial
from app.update import Updater

_OBJECT = "/state/rotation"
_LARGEST = 8192


class Rotation(Updater):
    """A rotation, one at a time. board: app.board.Board. Call step() in every pass of the loop."""

    command = "rotate"

    def begin(self, args, order):
        """Start the rotation that a command asks for. Raises CommandError."""
        if self._work:
            raise CommandError("an update is under way")
        self._check(args)
        self._order = order
        self._work = self._rotate(args)

    def recover(self, args, order):
        """Reply, after a restart, how a rotation ended, once its trial is over."""
        self._order = order
        self._work = self._await_end(args)

    def _rotate(self, args):
        path = self._board.folder + _OBJECT
        self._open_source(args)
        try:
            yield from self._download(args["sha256"], None, path)
            with open(path, "rb") as file:
                data = file.read(_LARGEST + 1)
        finally:
            _remove(path)
        if len(data) > _LARGEST:
            raise CommandError("has more than %d bytes" % _LARGEST)
        try:
            change(self._board.folder, data, args["sha256"])
        except ValueError as error:
            # SettingsError, possibly of an earlier copy of its module.
            raise CommandError(str(error))
        # Readings delivered with this boot's secrets say nothing about those of the next boot.
        self._board.trial = None
        self._board.restart()
        while True:  # the restart ends this
            yield 1000

    def _await_end(self, args):
        folder = self._board.folder
        while on_trial(folder):
            yield 1000
        if read(folder, SECRETS, {}).get("commands", {}).get("rotation") != args.get("sha256"):
            raise CommandError("the secrets are as before: the new ones reached no broker, or the power failed before")
        self._board.commands.reply(self._order, True, {"rotated": args["sha256"]})
        yield 0


def change(folder, data, rotation):
    """Put sealed secrets into secrets.json, on trial. data: the object; rotation: its SHA-256 in hex.

    Raises CommandError, SettingsError and OSError; the secrets are then unchanged.
    """
    before = read(folder, SECRETS, {})
    key = before.get("commands", {}).get("key")
    if not key:
        raise CommandError("this board has no key to open it with")
    try:
        new = json.loads(signed.seal(unhexlify(key), data[: signed.NONCE_SIZE], data[signed.NONCE_SIZE :]))
    except ValueError:
        raise CommandError("cannot be opened with the key of this board")
    replace(folder, read(folder, FILE, None), before, new, rotation=rotation)


def _remove(path):
    try:
        os.remove(path)
    except OSError:
        pass  # it does not exist
