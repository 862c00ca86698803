"""The command read: {"path": "/app"} lists a folder, {"path": "/settings.json", "offset": 0} reads text of a file.

It returns at most 1024 bytes at a time. Only the folders and files below can be read; none holds keys or passwords.
"""

import json
import os

from app.commands import CommandError

_FOLDERS = ("app", "lib", "ota", "state")
_FILES = (
    "boot.py",
    "main.py",
    "settings.json",
    "deployed.json",
    "boot_choice.py",
    "boot_choice.mpy",
    "startup.py",
    "startup.mpy",
    "postmortem.py",
    "postmortem.mpy",
)
# Not readable: the queue of the MQTT client, where commands and readings of others may wait.
_NOT = "state/mqtt"
_MOST_BYTES = 1024
# Quotes, line ends and control characters grow in JSON, up to sixfold.
_MOST_JSON_BYTES = 1300
_MOST_ENTRIES = 24
_FOLDER = 0x4000
# The largest file offset that every port accepts.
_MOST_OFFSET = 0x3FFFFFFF


def run(board, args):
    path = args.get("path", "/")
    if not isinstance(path, str):
        raise CommandError("path: must be text, for instance /app")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    offset = args.get("offset", 0)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MOST_OFFSET:
        raise CommandError("offset: must be a whole number from 0 to %d" % _MOST_OFFSET)
    _check(parts)
    path = "/".join(parts)
    full = board.folder + "/" + path
    try:
        if os.stat(full)[0] & _FOLDER:
            return _list(full, parts, offset)
        with open(full, "rb") as file:
            file.seek(offset)
            data = file.read(_MOST_BYTES)
        text, shown = _text(data)
        return {"path": "/" + path, "size": os.stat(full)[6], "offset": offset, "bytes": shown, "text": text}
    except OSError as error:
        raise CommandError("/%s: %r" % (path, error))


def _check(parts):
    if not parts:
        return
    allowed = parts[0] in _FOLDERS or len(parts) == 1 and parts[0] in _FILES
    # FAT ignores case: MQTT is mqtt there.
    if not allowed or ".." in parts or "/".join(parts).lower().startswith(_NOT):
        raise CommandError(
            "/%s may not be read; allowed are %s"
            % ("/".join(parts), ", ".join(["/" + name for name in _FOLDERS + _FILES]))
        )


def _list(full, parts, offset):
    names = sorted(os.listdir(full))
    if not parts:
        names = [name for name in names if name in _FOLDERS or name in _FILES]
    entries = []
    for name in names[offset : offset + _MOST_ENTRIES]:
        found = os.stat(full + "/" + name)
        entries.append([name, None if found[0] & _FOLDER else found[6]])
    return {"path": "/" + "/".join(parts), "count": len(names), "offset": offset, "entries": entries}


def _text(data):
    # Returns (text, number of bytes of data that it shows). In data that is not text, other bytes appear as dots.
    while True:
        text, shown = _decode(data)
        if len(json.dumps(text)) <= _MOST_JSON_BYTES:
            return text, shown
        data = data[: len(data) // 2]


def _decode(data):
    # The last character may be incomplete.
    for end in range(len(data), max(len(data) - 4, 0), -1):
        try:
            return data[:end].decode(), end
        except UnicodeError:
            pass
    return "".join([chr(byte) if 32 <= byte < 127 else "." for byte in data]), len(data)
