"""The commands, and what each guarantees if the power fails while it runs.

Every command is carried out at most once, and answered. After a power cut, the next boot answers the interrupted
commands with recover():

    ping, get, read, crash, log   run again: they change nothing
    outbox                        runs again; what it has sent on or dropped before is no longer set aside
    output                        fails: after a start all outputs are in their safe states
    pause                         fails: the board takes readings again, and the reply says so
    resume                        succeeds: a boot takes readings
    reboot                        succeeds, whatever restarted the board; the reply follows the restart, with its boot
    set                           settings.json is replaced as a whole or not at all; the reply says which
    rotate                        the same for secrets.json, once its trial is over; see rotation.py
    update                        continues until the new version is confirmed or given up; see update.py

The larger commands are modules act_NAME with run(board, args) and, if they need it, recover(board, args). Each is
imported when it is called and unloaded afterwards.
"""

import gc
import sys

from app.commands import CommandError, Later, NotNow
from app.modules import forget, once

_MODULES = ("outbox", "output", "read", "set")
_MOST_LOG_CHARACTERS = 1000
_NAMES = _MODULES + ("crash", "get", "log", "pause", "ping", "reboot", "resume", "rotate", "update")


class Actions:
    """The commands of a board. board: app.board.Board, the parts of the application."""

    def __init__(self, board):
        self._board = board
        self._paused = []  # orders of pause commands that wait for the outbox to empty

    def names(self):
        return _NAMES

    def authorize(self, name, args, payload, counter):
        """Return what guard.check() does: the counter of a signed command, or None. Raises CommandError."""
        try:
            return once("guard", "check", self._board, name, args, payload, counter)
        except MemoryError:
            raise NotNow("not carried out: not enough memory; send it again")
        finally:
            forget("signed")

    def sign(self, reply):
        """Return the reply to a signed command, signed; without enough memory it is as it was, and not believed."""
        try:
            return once("guard", "sign_reply", self._board, reply)
        except MemoryError:
            return reply
        finally:
            forget("signed")

    def run(self, name, args, order):
        """Carry out a command and return its result. Raises CommandError, or Later if the reply follows later."""
        if name in _MODULES:
            return self._in_module("run", name, args)
        return getattr(self, "do_" + name)(args, order)

    def recover(self, name, args, order):
        """Finish a command that the end of the last run interrupted. Returns and raises the same as run()."""
        if name == "set":
            return self._in_module("recover", name, args)
        if name == "reboot":
            return self.do_ping(args, order)
        if name == "pause":
            raise CommandError("the board restarted before its outbox was empty, and takes readings again")
        if name == "output":
            raise CommandError("the board restarted, and its outputs are in their safe states")
        if name in ("rotate", "update"):
            self._updater(name).recover(args, order)
            raise Later
        if name not in _NAMES:
            raise CommandError("interrupted, and this version does not know the command")
        return self.run(name, args, order)

    def failed(self, text):
        """Report what the flash refuses, once an hour."""
        self._board.log.failed(RuntimeError(text))

    def step(self):
        """Answer the pause commands once the outbox is empty."""
        if self._paused and self._board.client.pending == 0 and not self._board.telemetry.waits():
            waiting = self._paused
            self._paused = []
            for order in waiting:
                self._board.commands.reply(order, True, self._counts())

    def _in_module(self, function, name, args):
        module = "app.act_" + name
        try:
            action = getattr(__import__(module, None, None, (function,)), function)
            return action(self._board, args)
        except MemoryError:
            raise CommandError("not enough memory; send it again under another id")
        finally:
            forget("act_" + name, "settings_files", "settings")

    def do_crash(self, args, order):
        """Return the last traceback, and how often this board has crashed."""
        return once("crash", "last_crash") or {"n": 0}

    def do_get(self, args, order):
        """Return one setting for {"key": "interval_ms"}, all of them for {}. Settings hold no secret."""
        key = args.get("key")
        settings = self._board.settings
        if key is None:
            return settings
        if key not in settings:
            raise CommandError("no setting %r; there are %s" % (key, ", ".join(sorted(settings))))
        return {"key": key, "value": settings[key]}

    def do_log(self, args, order):
        """Return the newest lines of the log in RAM, oldest first."""
        found = []
        room = _MOST_LOG_CHARACTERS
        for line in reversed(self._board.log.lines()):
            room -= len(line) + 3
            if room < 0:
                break
            found.insert(0, line)
        return {"lines": found}

    def do_ping(self, args, order):
        board = self._board
        result = {
            "boot": board.identity.boot,
            "up": board.clock.uptime_ms(),
            "fw": board.version,
            "slot": board.boots.slot,
            "mpy": getattr(sys.implementation, "_mpy", 0),
            "platform": sys.platform,
            "free": gc.mem_free() if hasattr(gc, "mem_free") else None,
        }
        if board.boots.run != board.boots.slot:
            result["run"] = board.boots.run  # the version that runs again after safe mode, or a trial that fails
        return result

    def do_pause(self, args, order):
        if not self._board.telemetry:
            raise CommandError("safe mode takes no readings")
        self._board.telemetry.paused = True
        self._paused.append(order)
        raise Later

    def do_resume(self, args, order):
        if not self._board.telemetry:
            raise CommandError("safe mode takes no readings; send reboot to leave it")
        # Pause commands still waiting for the outbox to empty have failed: it will not.
        for waiting in self._paused:
            self._board.commands.reply(waiting, False, "resumed before the outbox was empty")
        self._paused = []
        self._board.telemetry.resume()
        return self._counts()

    def do_reboot(self, args, order):
        self._board.restart()
        raise Later

    def do_rotate(self, args, order):
        self._updater("rotate").begin(args, order)
        raise Later

    def do_update(self, args, order):
        self._updater("update").begin(args, order)
        raise Later

    def _updater(self, command):
        # Returns the part that carries out updates or rotations, one at a time.
        board = self._board
        if not board.update or board.update.command != command and not board.update.busy:
            if command == "rotate":
                from app.rotation import Rotation as Part
            else:
                from app.update import Updater as Part
            board.update = Part(board)
        return board.update

    def _counts(self):
        telemetry = self._board.telemetry
        return {
            "boot": self._board.identity.boot,
            "paused": telemetry.paused,
            "published": telemetry.published,
            "dropped": telemetry.dropped,
        }
