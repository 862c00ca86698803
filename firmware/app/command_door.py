"""Receives commands: loads the modules that carry them out when one arrives, and unloads them when all are done.

On a board that gets no commands, the modules commands, ledger and actions take no heap. Commands that the last run
left open are found at the start.

fleet/{device_id}/desired holds a command that the broker retains, so it arrives again at every start. It is carried
out once; from then on fleet/{device_id}/reported retains the settings of this board (reported.py). If that cannot be
now, for lack of memory for instance, the board asks the broker for it again.
"""

import json
from binascii import crc32

from app.modules import forget

# The modules stay loaded this long after the last command: a ping seldom comes alone.
_KEEP_MS = 10_000
# Desired settings that could not be applied at once are asked for again after this time.
_AGAIN_MS = 60_000
_MODULES = (
    "commands", "ledger", "actions", "update", "update_http", "update_mqtt", "versions",
    "rotation", "signed", "settings_trial", "settings_files", "settings",
)  # fmt: skip


class CommandDoor:
    """The receiver of commands. board: app.board.Board with client, clock, identity; path: folder of the ledger;
    unfinished: bool, it may hold an unanswered command.
    """

    def __init__(self, board, path, unfinished):
        self._board = board
        self._path = path
        self._desired = path + "/desired"
        self._commands = self._actions = None
        self._unfinished = unfinished
        self._idle_since = 0
        self._asks_at = None
        self.refused = 0

    @property
    def busy(self):
        """True while a command is not finished or the broker does not have its reply."""
        return self._unfinished or self._commands is not None and self._commands.busy

    def handle(self, topic, payload):
        """Handle a message on the topic of commands or of desired settings, for the client."""
        desired = topic.endswith(b"/desired")
        if desired:
            checksum = (crc32(payload) & 0xFFFFFFFF).to_bytes(4, "big")
            if not payload or first_bytes(self._desired) == checksum:
                return
        try:
            done = self._load().handle(topic, payload)
        except MemoryError:
            self._unload()
            self._refuse(payload)
            done = False
        if desired and not done:
            self._asks_at = self._board.clock.uptime_ms() + _AGAIN_MS
        elif desired:
            self._board.unreported = True
            try:
                with open(self._desired, "wb") as file:
                    file.write(checksum)
            except OSError:
                pass  # the command is looked at once more after the next start

    def step(self):
        """Continue commands and send the pending replies."""
        if self._unfinished:
            self._load()
            self._unfinished = False
        now = self._board.clock.uptime_ms()
        if self._asks_at is not None and now >= self._asks_at:
            self._asks_at = None
            # A new subscription makes the broker send what it retains.
            self._board.client.subscribe(self._board.identity.topic("desired"), qos=1)
        if not self._commands:
            return
        self._actions.step()
        self._commands.step()
        if self._commands.busy:
            self._idle_since = now
        elif now - self._idle_since > _KEEP_MS:
            self._unload()

    def reply(self, order, ok, result):
        """Answer a command that raised Later. See app.commands."""
        self._load().reply(order, ok, result)

    def dropped(self, packet_id):
        """Handle a message that the outbox dropped: if it was a reply, it is sent again."""
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
        # The command was not started, so its sender may repeat it.
        self.refused += 1
        try:
            command_id = json.loads(payload).get("id")
            reply = {"id": command_id, "ok": False, "result": "not carried out: not enough memory; send it again"}
            self._board.client.publish(self._board.identity.topic("reply"), json.dumps(reply).encode())
        except (ValueError, AttributeError, MemoryError):
            pass  # not a command, or no room for the reply: it is counted


def first_bytes(name):
    """Return the first 8 bytes of a file, or b"" if there is none."""
    try:
        with open(name, "rb") as file:
            return file.read(8)
    except OSError:
        return b""
