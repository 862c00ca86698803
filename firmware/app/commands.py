"""Carries out the commands on fleet/{device_id}/cmd, and replies on fleet/{device_id}/reply.

    {"id": "7", "cmd": "set", "args": {"key": "interval_ms", "value": 500}}
    {"id": "7", "ok": true, "result": {"key": "interval_ms", "value": 500, "was": 1000, "applies": "now"}}

Each command is in flash (ledger.py) before it is carried out, and its reply stays there until the broker has it. A
command whose id is known is not carried out again, whether the broker repeats it (QoS 1, or a lost session) or its
sender. Its reply is sent again instead. The ledger has the last 16 commands with their replies, and knows the ids of
48 more, which are refused. Refusals and repeated replies go at QoS 0: whoever sends thousands of commands must not wear
out the flash, where the outbox is.

Commands that can take the board away from its owner are signed (signed.py, guard.py). Each has a higher counter than
those before, which is durable before the command is carried out: a repeated old command is refused even if its id is
forgotten.

What a power cut during a command leads to depends on the command; actions.py describes each. Commands are
carried out in the order of their arrival; those that take longer than a moment (pause, update, reboot) are
answered later.
"""

import json

from app.ledger import Full
from umqtt_robust.errors import OutboxFull

_MAX_COMMAND_BYTES = 900
_MAX_ID_CHARACTERS = 64
_MAX_REPLY_BYTES = 1600
# Replies kept in RAM: those to invalid commands, and those that the flash refuses. Further ones are only counted.
_MAX_WAITING_REPLIES = 8


class CommandError(ValueError):
    """A command that cannot be carried out; its text goes into the reply."""


class NotNow(CommandError):
    """A command that cannot be carried out at present, and was not begun."""


class Later(Exception):
    """Raised by an action that will be answered by reply() when it is done."""


class Commands:
    """The executor of commands: handle() is the client's handler for the command topic; step() sends replies.

    actions: object with names(), run(name, args, order), which returns the result or raises CommandError or Later,
    recover(name, args, order), the same for a command that the end of the last run interrupted,
    authorize(name, args, payload, counter), see guard.check(), sign(reply), which returns it signed, and failed(text),
    which reports trouble.
    """

    def __init__(self, client, topic, ledger, actions):
        self._client = client
        self._topic = topic
        self._ledger = ledger
        self._actions = actions
        self._unkept = []
        self._recover = ledger.open()
        self.executed = 0
        self.repeated = 0
        self.unanswered = 0

    def handle(self, topic, payload):
        """Carry out and answer a command. Return False if it may be carried out when it comes again.

        A bad command raises nothing: it is answered with an error.
        """
        command_id = None
        try:
            command_id, name, args = parse_command(payload)
            order = self._ledger.find(command_id)
            if order is not None:
                self.repeated += 1
                reply = self._ledger.reply(order)
                if reply:
                    self._answer(reply)
                return True
            if self._ledger.was_done(command_id):
                self.repeated += 1
                raise CommandError("carried out before, and its reply is gone; send it with another id to repeat it")
            if self._ledger.waits:
                self._settle()
                if self._ledger.waits and self._client.pending:
                    raise OutboxFull  # the client hands the command over again once the broker has taken more
            if name not in self._actions.names():
                known = ", ".join(sorted(self._actions.names()))
                raise CommandError("unknown command %r: known are %s" % (name, known))
            counter = self._actions.authorize(name, args, payload, self._ledger.counter)
            order = self._begin(command_id, payload)
        except CommandError as error:
            self._refuse(command_id, str(error))
            return not isinstance(error, NotNow)
        self._run(order, command_id, name, args, self._actions.run, counter)
        self._send_replies()
        return True

    def step(self):
        """Finish the commands that the last run left open, and send the pending replies."""
        while self._recover:
            order = self._recover.pop(0)
            command = self._ledger.command(order)
            args = command.get("args")
            # The ledger holds verified commands only. The power may have failed before the counter was stored.
            self._run(
                order, command.get("id"), command.get("cmd"), args if args else {}, self._actions.recover,
                command.get("counter"),
            )  # fmt: skip
        self._settle()
        self._send_replies()

    def _settle(self):
        self._ledger_call(self._ledger.settle, self._client.is_pending)

    def _send_replies(self):
        while self._unkept and self._client.connected:
            if self._client.publish(self._topic, self._unkept[0]) is None:
                break
            self._unkept.pop(0)
        try:
            found = self._ledger.next_reply()
            while found:
                self._ledger.publishing(found[0], self._client.publish(self._topic, found[1], qos=1))
                found = self._ledger.next_reply()
        except OutboxFull:
            return  # they wait for room

    @property
    def busy(self):
        """True while a command is not finished or the broker does not have its reply."""
        return bool(self._unkept or self._recover or self._ledger.busy)

    def reply(self, order, ok, result):
        """Answer a command that raised Later. A second answer is ignored."""
        if self._ledger.is_open(order):
            command = self._ledger.command(order)
            self._finish(order, command.get("id"), ok, result, command.get("counter"))

    def dropped(self, packet_id):
        """Handle a message that the outbox dropped: if it was a reply, it is sent again."""
        self._ledger.dropped(packet_id)

    def _begin(self, command_id, payload):
        try:
            return self._ledger.begin(command_id, payload)
        except Full:
            raise NotNow("not carried out: the replies to earlier commands still wait; send it again later")
        except OSError as error:
            raise NotNow("not carried out: it cannot be kept in flash: %r" % error)

    def _run(self, order, command_id, name, args, action, counter):
        try:
            self._use(counter)
            self.executed += 1
            self._finish(order, command_id, True, action(name, args, order), counter)
        except Later:
            return
        except CommandError as error:
            self._finish(order, command_id, False, str(error), counter)
        except Exception as error:  # noqa: BLE001 - a mistake in one command: whoever sent it is told
            self._finish(order, command_id, False, "failed: %r" % error, counter)

    def _use(self, counter):
        if counter and counter > self._ledger.counter:
            try:
                self._ledger.use(counter)
            except OSError as error:
                raise CommandError("not carried out: its counter cannot be kept in flash: %r" % error)

    def _finish(self, order, command_id, ok, result, counter):
        reply = encode_reply(command_id, ok, result)
        if len(reply) > _MAX_REPLY_BYTES:
            reply = encode_reply(command_id, False, "done, but the reply has more than %d bytes" % _MAX_REPLY_BYTES)
        if counter:
            reply = self._actions.sign(reply)
        # If the flash refuses it, the command stays known and open: recover() answers it once more.
        if not self._ledger_call(self._ledger.finish, order, reply):
            self._answer(reply)

    def _ledger_call(self, method, *arguments):
        try:
            method(*arguments)
            return True
        except OSError as error:
            self._actions.failed("commands are not noted in flash: %r" % error)
            return False

    def _refuse(self, command_id, text):
        self._answer(encode_reply(command_id, False, text))

    def _answer(self, reply):
        # Published by step(), never from within the client's handler.
        if len(self._unkept) == _MAX_WAITING_REPLIES:
            self.unanswered += 1
            return
        self._unkept.append(reply)


def encode_reply(command_id, ok, result):
    return json.dumps({"id": command_id, "ok": ok, "result": result}).encode()


def parse_command(payload):
    """Return (id: str, cmd: str, args: dict) of a command's payload. Raises CommandError."""
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
    args = command.get("args", {})
    if not isinstance(args, dict):
        raise CommandError('args: must be an object, for instance {"key": "interval_ms"}')
    return command_id, name, args
