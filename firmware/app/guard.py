"""Lets in commands that their owner has signed, and refuses those that had to be: for commands.py, which forgets it.

Every command that is carried out wears the flash, so whoever owns the broker may not have as many as they like.
"""

import json
from binascii import unhexlify

from app import signed
from app.commands import CommandError

# Of commands that are not signed, ms for each and how many may come at once: at this rate the flash outlasts the board.
_EVERY_MS = 5000
_AT_ONCE = 60


def check(board, name, args, payload, last):
    """The counter of a signed command, or None for one that needs no signature and has none. Raises CommandError.

    payload: bytes as they came; last: the highest counter of a command that was carried out.
    """
    payload = bytes(payload)
    command = json.loads(payload)
    if not signed.is_signed(payload):
        if "counter" in command or "mac" in command:
            # Not carried out, so that no counter is ever kept that was not verified.
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


def _count(board):
    now = board.clock.uptime_ms()
    until = max(board.commands_until, now) + _EVERY_MS
    excess = until - now - _AT_ONCE * _EVERY_MS
    if excess > 0:
        raise CommandError(
            "not carried out: more than %d commands at once wear out the flash; send it again under another id in %d s"
            % (_AT_ONCE, (excess + 999) // 1000)
        )
    board.commands_until = until


def _key(folder):
    # As settings_files.read(), which would load the check of all settings with it. They were checked at boot.
    for suffix in ("", ".new", ".was"):
        try:
            with open(folder + "/secrets.json" + suffix) as file:
                return json.load(file).get("commands", {}).get("key")
        except OSError:
            pass
    return None
