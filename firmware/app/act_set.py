"""The command set: {"key": "interval_ms", "value": 500} writes one setting, and applies it at once if possible.

The value null restores the default. {"settings": {"interval_ms": 500, "keep_alive": 30}} writes those that differ,
all at once, and restarts the board if one of them takes effect at the next boot. New values pass the same check as
settings.json at boot, so an accepted set cannot keep the board from booting. The command cannot change secrets.json.
The reply says when the change takes effect.
"""

from app.commands import CommandError
from app.settings import CABLE_ONLY, DEFAULTS, LIVE, SettingsError
from app.settings_files import change, load


def run(board, args):
    was = board.settings
    changes = _changes(args)
    if "settings" in args:
        changes = {key: changes[key] for key in changes if key not in was or _value(changes, key) != was[key]}
    for key in changes:
        if key in CABLE_ONLY:
            raise CommandError("%s is set over the cable alone: umqtt provision" % key)
    if "brokers" in changes and _is_encrypted(was.get("brokers")) and not _is_encrypted(changes["brokers"]):
        raise CommandError("brokers: no command leads from mqtts to mqtt: umqtt provision")
    settings = was
    if changes:
        try:
            settings = change(board.folder, changes)
        except SettingsError as error:
            raise CommandError(str(error))
        except OSError as error:
            raise CommandError("not changed: settings.json cannot be written: %r" % error)
    applies = "now"
    for key in changes:
        if not apply(board, settings, key):
            applies = "after reboot"
        if key not in LIVE:
            # Readings delivered with this boot's settings say nothing about those of the next boot.
            board.trial = None
            if "settings" in args:
                board.restart()
    if "settings" not in args:
        return {"key": args["key"], "value": settings[args["key"]], "was": was.get(args["key"]), "applies": applies}
    return {"changed": sorted(changes), "applies": applies}


def recover(board, args):
    """Answer a set that a power cut interrupted: it changed everything or nothing. Raises CommandError if nothing."""
    settings = load(board.folder)[0]
    changes = _changes(args)
    for key in changes:
        if settings.get(key) != _value(changes, key):
            raise CommandError("%s was not changed: the power failed before; send it again under another id" % key)
    if "settings" in args:
        return {"changed": sorted(changes), "applies": "now"}
    return {"key": args["key"], "value": args["value"], "applies": "now"}


def apply(board, settings, key):
    """Use new settings, in which `key` has changed; return True if that takes effect at once."""
    board.settings = settings
    if board.unreported is not None:
        board.unreported = True
    telemetry = board.telemetry
    if key == "log_level":
        board.log.level = settings[key]
        return True
    if key == "telemetry_qos" and telemetry:
        telemetry.qos = settings[key]
        return True
    if key == "expires_s" and telemetry:
        telemetry.expires_s = settings[key]  # for readings taken from now on
        return True
    if key == "home_assistant" and telemetry:
        board.discover(settings[key])
        return True
    if key in ("interval_ms", "sleep_s"):
        board.room_told = False
        if board.discovery:
            board.discovery.check_again()
    if key == "interval_ms" and telemetry:
        telemetry.interval_ms = settings[key]
        if not telemetry.paused:
            telemetry.resume()  # the next reading is taken now, and the schedule counts from it
        return True
    if key == "sleep_s" and telemetry:
        if not settings[key]:
            board.sleeper = None
            telemetry.interval_ms = settings["interval_ms"]
            telemetry.resume()
        elif not board.sleeper:
            board.sleep()
        return True
    return False


def _value(changes, key):
    return DEFAULTS.get(key) if changes[key] is None else changes[key]


def _is_encrypted(brokers):
    # The first address decides: lists that mix the two are refused.
    return isinstance(brokers, list) and bool(brokers) and str(brokers[0]).startswith("mqtts:")


def _changes(args):
    if "settings" in args:
        if not isinstance(args["settings"], dict):
            raise CommandError('settings: must be an object: {"settings": {"interval_ms": 500}}')
        return args["settings"]
    if not isinstance(args.get("key"), str) or "value" not in args:
        raise CommandError('set needs a key and a value: {"key": "interval_ms", "value": 500}')
    return {args["key"]: args["value"]}
