"""The command set: {"key": "interval_ms", "value": 500} writes one setting, and applies it if that can be done now.

The value null restores the default. What is written was checked by the function that checks settings.json at boot, so a
set that is accepted cannot keep the board from booting; secrets.json is out of reach. The reply says when it counts.
"""

from app.commands import CommandError
from app.settings import CABLE_ONLY, DEFAULTS, LIVE, SettingsError
from app.settings_files import change, load


def run(board, args):
    key, value = _key_and_value(args)
    was = board.settings.get(key)
    if key in CABLE_ONLY:
        raise CommandError("%s is set over the cable alone: umqtt provision" % key)
    if key == "brokers" and _is_encrypted(was) and not _is_encrypted(value):
        raise CommandError("brokers: no command leads from mqtts to mqtt: umqtt provision")
    try:
        settings = change(board.folder, key, value)
    except SettingsError as error:
        raise CommandError(str(error))
    except OSError as error:
        raise CommandError("not changed: settings.json cannot be written: %r" % error)
    if key not in LIVE:
        # Readings that arrive by the settings of this boot say nothing about those of the next.
        board.trial = None
    return {
        "key": key,
        "value": settings[key],
        "was": was,
        "applies": "now" if board.apply(settings, key) else "after reboot",
    }


def recover(board, args):
    """After a power cut: it was done as a whole, or not at all."""
    key, value = _key_and_value(args)
    if load(board.folder)[0].get(key) != (DEFAULTS.get(key) if value is None else value):
        raise CommandError("%s was not changed: the power failed before; send it again under another id" % key)
    return {"key": key, "value": value, "applies": "now"}


def _is_encrypted(brokers):
    # The first speaks for all: lists that mix the two are refused.
    return isinstance(brokers, list) and bool(brokers) and str(brokers[0]).startswith("mqtts:")


def _key_and_value(args):
    if not isinstance(args.get("key"), str) or "value" not in args:
        raise CommandError('set needs a key and a value: {"key": "interval_ms", "value": 500}')
    return args["key"], args["value"]
