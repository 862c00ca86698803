"""Accepts commands that the owner has signed, and refuses unsigned ones that need a signature. Loaded per command.

The reply to a signed command is signed too, with the key that the board has then.

Every command that is carried out wears the flash, so unsigned ones are limited, even for the owner of the broker.
"""

import json
from binascii import unhexlify

from app import signed
from app.commands import CommandError, NotNow

# Limit for unsigned commands: _AT_ONCE, then one every _EVERY_MS. At this rate the flash outlasts the board.
_EVERY_MS = 5000
_AT_ONCE = 60


def check(board, name, args, payload, last):
    """Return the counter of a signed command, or None if it needs no signature and has none. Raises CommandError.

    payload: bytes as received; last: the highest counter of a command that was carried out.
    """
    payload = bytes(payload)
    command = json.loads(payload)
    if not signed.is_signed(payload):
        if "counter" in command or "mac" in command:
            # Refused, so that a counter that was not verified is never stored.
            raise CommandError("it has a counter or a mac and is not signed: mac must be the last member")
        if signed.needs_signature(name, args) and not board.settings["unsigned_commands"]:
            raise CommandError("%s must be signed: give this board a key over the cable with umqtt keys make" % name)
        _count(board)
        return None
    key = _key(board.folder)
    if not key:
        raise CommandError("it is signed, and this board has no key: make one over the cable with umqtt keys make")
    if not signed.verify(unhexlify(key), board.identity.device_id, payload):
        raise CommandError("its signature is wrong: this board has another key, or it was changed on the way")
    counter = command.get("counter")
    if isinstance(counter, bool) or not isinstance(counter, int) or not 0 < counter <= signed.MOST_COUNTER:
        raise CommandError("counter: must be a whole number from 1 to %d" % signed.MOST_COUNTER)
    if counter <= last:
        raise CommandError("counter %d is used up, the last one was %d: an old command came again" % (counter, last))
    return counter


def sign_reply(board, reply):
    """Return a reply with its mac; without a key as it is. reply: bytes."""
    key = _key(board.folder)
    return signed.sign(unhexlify(key), board.identity.device_id, reply, signed.REPLY) if key else reply


def _count(board):
    now = board.clock.uptime_ms()
    until = max(board.commands_until, now) + _EVERY_MS
    excess = until - now - _AT_ONCE * _EVERY_MS
    if excess > 0:
        raise NotNow(
            "not carried out: more than %d commands at once wear out the flash; send it again under another id in %d s"
            % (_AT_ONCE, (excess + 999) // 1000)
        )
    board.commands_until = until


def _key(folder):
    # Like settings_files.read(), which would also load the checks of all settings. They were checked at boot.
    for suffix in ("", ".new", ".was"):
        try:
            with open(folder + "/secrets.json" + suffix) as file:
                return json.load(file).get("commands", {}).get("key")
        except OSError:
            pass
    return None
