"""Where commands come in: loads what carries them out when the first one comes, and lets go of it when all is done.

On a board that is told nothing, commands, ledger and actions take no heap. What the run before left open is looked for
at the start.

fleet/{device_id}/desired is a command that the broker retains, and so it comes again at every start. It is carried out
once, and from then on fleet/{device_id}/reported retains the settings of this board: reported.py.
"""

import json
from binascii import crc32

from app.modules import forget
from umqtt_robust.errors import OutboxFull, StoreError

# A ping comes seldom alone.
_KEEP_MS = 10_000
_MODULES = (
    "commands", "ledger", "actions", "update", "update_http", "update_mqtt", "versions",
    "rotation", "signed", "settings_trial", "settings_files", "settings",
)  # fmt: skip


class CommandDoor:
    """board: app.board.Board with client, clock and identity; path: of the ledger."""

    def __init__(self, board, path):
        self._board = board
        self._path = path
        self._desired = path + "/desired"
        self._commands = self._actions = None
        self._unfinished = _is_unfinished(path)
        self._idle_since = 0
        self.refused = 0

    @property
    def busy(self):
        """True while a command is not done, or the broker lacks its reply."""
        return self._unfinished or self._commands is not None and self._commands.busy

    def handle(self, topic, payload):
        """The client's handler for the topics of commands and of desired settings."""
        desired = topic.endswith(b"/desired")
        if desired:
            checksum = (crc32(payload) & 0xFFFFFFFF).to_bytes(4, "big")
            if not payload or _head(self._desired) == checksum:
                return
        try:
            self._load().handle(topic, payload)
        except MemoryError:
            self._unload()
            self._refuse(payload)
            return
        if desired:
            self._board.unreported = True
            try:
                with open(self._desired, "wb") as file:
                    file.write(checksum)
            except OSError:
                pass  # it is looked at once more after the next start

    def step(self):
        """Answer and send what waits."""
        if self._unfinished:
            self._load()
            self._unfinished = False
        if not self._commands:
            return
        self._actions.step()
        self._commands.step()
        now = self._board.clock.uptime_ms()
        if self._commands.busy:
            self._idle_since = now
        elif now - self._idle_since > _KEEP_MS:
            self._unload()

    def reply(self, order, ok, result):
        """Answer a command that is done later. See app.commands."""
        self._load().reply(order, ok, result)

    def dropped(self, packet_id):
        """The outbox gave up a message: if it was a reply, it goes again."""
        if self._commands:
            self._commands.dropped(packet_id)

    def _load(self):
        if not self._commands:
            from app.actions import Actions
            from app.commands import Commands
            from app.ledger import Ledger

            board = self._board
            self._actions = Actions(board)
            self._commands = Commands(board.client, board.identity.topic("reply"), Ledger(self._path), self._actions)
            self._idle_since = board.clock.uptime_ms()
        return self._commands

    def _unload(self):
        self._commands = self._actions = self._board.update = None
        forget(*_MODULES)

    def _refuse(self, payload):
        # Not begun, so it may be sent again.
        self.refused += 1
        try:
            command_id = json.loads(payload).get("id")
            reply = {"id": command_id, "ok": False, "result": "not carried out: not enough memory; send it again"}
            self._board.client.publish(self._board.identity.topic("reply"), json.dumps(reply).encode(), qos=1)
        except (ValueError, AttributeError, OutboxFull, StoreError, MemoryError):
            pass  # no command, or no room to say so: it is counted


def _is_unfinished(path):
    # True when the ledger may hold a command that is not answered. It has the last word; see its layout.
    newest = 0
    for n in range(16):
        newest = max(newest, _order(path + "/%d" % n))
    return newest > _order(path + "/sent")


def _order(name):
    return int.from_bytes(_head(name)[4:], "little")


def _head(name):
    try:
        with open(name, "rb") as file:
            return file.read(8)
    except OSError:
        return b""
