"""What the board does when told so on fleet/{device_id}/cmd, and the reply on fleet/{device_id}/reply.

    {"id": "7", "cmd": "ping"}      -> {"id": "7", "ok": true, "result": {"boot": "17-…", "up": 912345}}
    {"id": "8", "cmd": "pause"}     stops taking readings; replies when everything in the outbox is
    acknowledged {"id": "9", "cmd": "resume"}    takes readings again

A reply to what went wrong: {"id": "9", "ok": false, "result": "unknown command 'x': known are pause, ping,
resume"}. Every command may come twice (QoS 1) and does the same then.
"""

import json

from umqtt_robust.errors import OutboxFull, StoreError

_MAX_COMMAND_BYTES = 1024
_MAX_ID_CHARACTERS = 64
# Replies that wait for room in the outbox; a flood of commands beyond that is counted, not remembered.
_MAX_WAITING_REPLIES = 16


class CommandError(ValueError):
    """A command that cannot be carried out; its text goes into the reply."""


class Commands:
    """handle() is the client's handler for the command topic; step() sends the replies that had to wait."""

    def __init__(self, client, identity, clock, telemetry):
        self._client = client
        self._identity = identity
        self._clock = clock
        self._telemetry = telemetry
        self._reply_topic = identity.topic("reply")
        self._replies = []
        self._paused_ids = []
        self.unanswered = 0
        self._known = {"ping": self._ping, "pause": self._pause, "resume": self._resume}

    def handle(self, topic, payload):
        """Never raises for a bad command: it is answered."""
        command_id = None
        try:
            command_id, name = parse_command(payload)
            action = self._known.get(name)
            if action is None:
                known = ", ".join(sorted(self._known))
                raise CommandError("unknown command %r: known are %s" % (name, known))
            action(command_id)
        except CommandError as error:
            self._reply(command_id, False, str(error))

    def step(self):
        """Send what waits: replies that found no room, and those to pause once the outbox is empty."""
        while self._replies:
            try:
                self._client.publish(self._reply_topic, self._replies[0], qos=1)
            except (OutboxFull, StoreError):
                return
            self._replies.pop(0)
        if self._paused_ids and self._client.pending == 0:
            waiting = self._paused_ids
            self._paused_ids = []
            for command_id in waiting:
                self._reply(command_id, True, self._counts())

    def _ping(self, command_id):
        self._reply(command_id, True, {"boot": self._identity.boot, "up": self._clock.uptime_ms()})

    def _pause(self, command_id):
        self._telemetry.paused = True
        if command_id in self._paused_ids:
            return
        if len(self._paused_ids) == _MAX_WAITING_REPLIES:
            raise CommandError("too many wait for the outbox to empty: at most %d" % _MAX_WAITING_REPLIES)
        self._paused_ids.append(command_id)

    def _resume(self, command_id):
        # Whoever still waits for the outbox to empty is told the truth: it will not.
        for waiting in self._paused_ids:
            self._reply(waiting, False, "resumed before the outbox was empty")
        self._paused_ids = []
        self._telemetry.resume()
        self._reply(command_id, True, self._counts())

    def _counts(self):
        return {
            "boot": self._identity.boot,
            "paused": self._telemetry.paused,
            "published": self._telemetry.published,
            "dropped": self._telemetry.dropped,
        }

    def _reply(self, command_id, ok, result):
        # Kept until the outbox takes it: published by step(), never from within the client's handler.
        if len(self._replies) == _MAX_WAITING_REPLIES:
            self.unanswered += 1
            return
        self._replies.append(json.dumps({"id": command_id, "ok": ok, "result": result}).encode())


def parse_command(payload):
    """(id: str, cmd: str) of a command's payload. Raises CommandError."""
    if len(payload) > _MAX_COMMAND_BYTES:
        raise CommandError("command of %d bytes: at most %d" % (len(payload), _MAX_COMMAND_BYTES))
    try:
        command = json.loads(bytes(payload).decode())
    except ValueError:
        # UnicodeError is a ValueError too.
        raise CommandError('not JSON: send {"id": "1", "cmd": "ping"}')
    if not isinstance(command, dict):
        raise CommandError('not a JSON object: send {"id": "1", "cmd": "ping"}')
    command_id = command.get("id")
    if not isinstance(command_id, str) or not 0 < len(command_id) <= _MAX_ID_CHARACTERS:
        raise CommandError("id: must be text of 1 to %d characters" % _MAX_ID_CHARACTERS)
    name = command.get("cmd")
    if not isinstance(name, str):
        raise CommandError("cmd: must be text, for instance ping")
    return command_id, name
