"""Reads and checks settings.json and secrets.json on the board, and changes them so that a power cut does no harm."""

import json
import os

from app.settings import (
    DEFAULTS,
    FILE,
    LIVE,
    SECRETS,
    SettingsError,
    check_object,
    check_secrets,
    check_settings,
    check_together,
)


def load(folder):
    """Return (settings, secrets) from the two files in folder, checked, with defaults filled in.

    Raises SettingsError. secrets.json may be missing; settings.json may not, because a board without a broker
    is of no use.
    """
    settings = check_settings(read(folder, FILE, None))
    secrets = check_secrets(read(folder, SECRETS, {}))
    check_together(settings, secrets)
    return settings, secrets


def change(folder, changes):
    """Set keys of settings.json, durably and all at once; a value None restores its default. Returns all settings.

    Changes that take effect at the next boot are on trial from then on: settings_trial.py can restore the old ones.
    Raises SettingsError, and OSError if the file cannot be written; it is then unchanged.
    """
    values = read(folder, FILE, None)
    check_object(values, None, FILE, "")
    before = dict(values)
    check_object(changes, DEFAULTS, FILE, "")
    for key in changes:
        if changes[key] is None:
            values.pop(key, None)
        else:
            values[key] = changes[key]
    settings = check_settings(values)
    check_together(settings, check_secrets(read(folder, SECRETS, {})))
    if [key for key in changes if key not in LIVE]:
        keep_before(folder, FILE, before)
    save(folder, FILE, values)
    return settings


def certificates(secrets):
    """Return the paths of the certificates and private keys that secrets name."""
    return list(secrets.get("tls", {}).values())


def keep_before(folder, file, values):
    """Begin a trial of the next content of a file. values: what a failed trial restores. Raises OSError."""
    try:
        os.stat(_path(folder, file + ".was"))
    except OSError:
        # A trial under way keeps its older values: those now in the file are on trial themselves.
        save(folder, file + ".was", values)


def read_before(folder, file):
    """Return the values that a failed trial of a file restores, {} if there is no trial. Raises SettingsError."""
    try:
        return _parsed(_path(folder, file + ".was"), file)
    except OSError:
        return {}


def save(folder, file, values):
    """Write values as JSON to file: after a power cut it holds either its old content or all of the new one.

    Raises OSError, and SettingsError if the new content cannot be read back.
    """
    path = _path(folder, file)
    with open(path + ".new", "w") as stream:
        stream.write(json.dumps(values))
        stream.flush()
        # littlefs is durable at close; an operating system needs fsync().
        if hasattr(os, "fsync"):
            os.fsync(stream.fileno())
    _parsed(path + ".new", file)  # an unreadable file must not replace a readable one
    exchange(path + ".new", path)


def exchange(new, path):
    """Replace the file at path by the one at new. Raises OSError."""
    try:
        os.rename(new, path)
    except OSError:
        # FAT cannot replace files. A power cut between these two leaves only the new file, which read() then uses.
        os.remove(path)
        os.rename(new, path)


def _path(folder, file):
    return folder.rstrip("/") + "/" + file


def read(folder, file, missing):
    """Return the values in a file, or missing if there is none. Raises SettingsError, also if missing is None."""
    for suffix in ("", ".new", ".was"):
        try:
            return _parsed(_path(folder, file) + suffix, file)
        except OSError:
            continue
    if missing is None:
        raise SettingsError(file, "", "is not on the board; it must hold at least the list of brokers")
    return missing


def _parsed(path, file):
    with open(path) as stream:
        try:
            return json.loads(stream.read())
        except ValueError:
            # UnicodeError is a ValueError too.
            raise SettingsError(file, "", "is not JSON")
