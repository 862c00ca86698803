"""Puts new secrets, and settings with them, on trial: for rotations over the air, and for the setup portal.

Each new certificate gets an unused path, so a power cut at any moment leaves either the old or the new secrets,
complete. settings_trial.py keeps new ones that deliver readings, and otherwise restores the old ones.
"""

import os

from app.settings import FILE, SECRETS, SettingsError, check_object, check_secrets, check_settings, check_together
from app.settings_files import certificates, keep_before, read_before, save


def replace(folder, settings, secrets, new, changes=None, rotation=None):
    """Put new secrets, and settings, on trial. Raises SettingsError and OSError; both files are then unchanged.

    settings, secrets: what the two files hold; new: sections of secrets.json that change, with certificates as PEM;
    changes: keys of settings.json that change, or None; rotation: SHA-256 in hex of this rotation, or None.
    """
    merged = {"wifi": {}, "mqtt": {}, "tls": {}, "commands": {}}
    check_object(new, merged, SECRETS, "")
    for section in merged:
        check_object(new.get(section, {}), None, SECRETS, section)
        merged[section].update(secrets.get(section, {}))
        merged[section].update(new.get(section, {}))
    if rotation:
        merged["commands"]["rotation"] = rotation
    used = certificates(secrets) + certificates(read_before(folder, SECRETS))
    contents = {}
    for name, content in new.get("tls", {}).items():
        if not isinstance(content, str):
            raise SettingsError(SECRETS, "tls." + name, "must be text in PEM")
        merged["tls"][name] = path = _unused_path(name, used)
        contents[path] = content
    changed = dict(settings)
    changed.update(changes or {})
    check_together(check_settings(changed), check_secrets(merged))
    for path in contents:
        with open(folder + path, "w") as file:
            file.write(contents[path])
            file.flush()
            if hasattr(os, "fsync"):
                os.fsync(file.fileno())
    # Secrets first: the new ones also hold what the old settings need.
    keep_before(folder, SECRETS, secrets)
    if changes:
        keep_before(folder, FILE, settings)
    save(folder, SECRETS, merged)
    if changes:
        save(folder, FILE, changed)


def _unused_path(name, used):
    # Returns a path that neither the current nor the previous secrets name.
    for number in ("", "-2", "-3"):
        path = "/%s%s.pem" % (name, number)
        if path not in used:
            return path
