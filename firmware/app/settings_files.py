"""settings.json and secrets.json on the board: read and checked, and changed so that a power cut does no harm."""

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
    """(settings, secrets) from the two files in folder, checked, with defaults filled in.

    Raises SettingsError. secrets.json may be missing; settings.json may not, since a board without a broker
    is of no use.
    """
    settings = check_settings(read(folder, FILE, None))
    secrets = check_secrets(read(folder, SECRETS, {}))
    check_together(settings, secrets)
    return settings, secrets


def change(folder, changes):
    """Set keys of settings.json, durably and all at once; a value None restores its default. Returns all settings.

    What counts from the next boot on is on trial there: the settings before are kept, see settings_trial.py. Raises
    SettingsError, and OSError when it cannot be written; the file is as it was then.
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
    """The paths of the certificates and private keys that secrets name."""
    return list(secrets.get("tls", {}).values())


def keep_before(folder, file, values):
    """Begin a trial of the next content of a file: values are what it goes back to. Raises OSError."""
    try:
        os.stat(_path(folder, file + ".was"))
    except OSError:
        # Not those of a change that is on trial itself.
        save(folder, file + ".was", values)


def read_before(folder, file):
    """The values that the trial of a file goes back to, {} where there is none. Raises SettingsError."""
    try:
        return _parsed(_path(folder, file + ".was"), file)
    except OSError:
        return {}


def save(folder, file, values):
    """Write values as JSON to file: after a power cut it holds either what it held or all of this.

    Raises OSError, and SettingsError when it cannot be read back.
    """
    path = _path(folder, file)
    with open(path + ".new", "w") as stream:
        stream.write(json.dumps(values))
        stream.flush()
        # littlefs is durable at close; an operating system needs to be told.
        if hasattr(os, "fsync"):
            os.fsync(stream.fileno())
    _parsed(path + ".new", file)  # what cannot be read back must not take the place of what could
    exchange(path + ".new", path)


def exchange(new, path):
    """Put one file in the place of another. Raises OSError."""
    try:
        os.rename(new, path)
    except OSError:
        # FAT does not replace. A cut between these two leaves the new file alone, which read() then takes.
        os.remove(path)
        os.rename(new, path)


def _path(folder, file):
    return folder.rstrip("/") + "/" + file


def read(folder, file, missing):
    """The values in a file; missing: those where there is no file. Raises SettingsError."""
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
