"""The command get: {"key": "interval_ms"} reads one setting, {} reads all of them. Settings hold no secret."""

from app.commands import CommandError


def run(board, args):
    key = args.get("key")
    if key is None:
        return board.settings
    if key not in board.settings:
        raise CommandError("no setting %r; there are %s" % (key, ", ".join(sorted(board.settings))))
    return {"key": key, "value": board.settings[key]}
