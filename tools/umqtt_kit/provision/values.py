"""The wanted configuration of a board: its present one with the requested changes, checked by the firmware's rules."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit.device import Configuration
from umqtt_kit.device.configuration import check
from umqtt_kit.firmware_settings import settings_module

#: Paths of the certificates on a board, by their keys in secrets.json.
TLS_FILES = {"ca": "/ca.pem", "cert": "/cert.pem", "key": "/key.pem"}
_HIDDEN = "(set)"
_REFUSED = "(set, and refused by the board: umqtt doctor)"
_SECRET_NAME = re.compile("pass|secret|token|key|psk|credential|auth", re.IGNORECASE)
_USER_OF_URL = re.compile("//[^/@]*@")
_ANY_BROKER = "mqtt://host"
_FROM_KEYS = frozenset({"settings", "wifi", "mqtt", "tls"})


@dataclass
class Change:
    """The requested changes; whatever is not named stays. repr() shows no secret.

    settings: keys of settings.json; None removes one, so that it has its default again. wifi: networks in order with
    their passwords, "" for an open one, None to keep the password that is there; an empty list for no Wi-Fi. mqtt:
    username and password; None removes one. commands: the key of the board in hex. tls: contents of certificate files
    by the keys of TLS_FILES.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    wifi: list[tuple[str, str | None]] | None = field(default=None, repr=False)
    mqtt: dict[str, str | None] = field(default_factory=dict, repr=False)
    tls: dict[str, bytes] = field(default_factory=dict, repr=False)
    commands: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Target:
    """The files as they are to be on the board. repr() shows no secret."""

    settings: dict[str, Any]
    secrets: dict[str, Any] = field(repr=False)
    certificates: dict[str, bytes] = field(repr=False)


def target(current: Configuration, change: Change) -> Target:
    """Return what is to be on a board: its configuration with the change applied, checked.

    Raises the firmware's SettingsError (a ValueError whose text is one line and repeats no secret).
    """
    settings = dict(current.settings or {}) | change.settings
    secrets = current.sections
    if change.wifi is not None:
        known = secrets.get("wifi", {})
        settings["wifi"] = [ssid for ssid, _ in change.wifi]
        secrets["wifi"] = {
            ssid: known.get(ssid, "") if password is None else password for ssid, password in change.wifi
        }
    if change.mqtt:
        merged = secrets.get("mqtt", {}) | change.mqtt
        secrets["mqtt"] = {key: value for key, value in merged.items() if value is not None}
    if change.commands:
        secrets["commands"] = secrets.get("commands", {}) | change.commands
    if change.tls:
        secrets["tls"] = secrets.get("tls", {}) | {key: TLS_FILES[key] for key in change.tls}
    wanted = {key: value for key, value in settings.items() if value is not None}
    check(wanted, secrets)
    return Target(wanted, secrets, {TLS_FILES[key]: content for key, content in change.tls.items()})


def masked(settings: Mapping[str, Any] | None, secrets: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return settings and secrets for display and logs. A secret is shown only as set, without its length.

    A secret may be anywhere in the files, so only values that are known not to be secret are shown.
    """
    return {
        "settings": None if settings is None else {key: _setting(key, value) for key, value in settings.items()},
        "secrets": {section: _section(section, entries) for section, entries in (secrets or {}).items()},
    }


def _setting(key: str, value: object) -> object:
    try:
        settings_module().check_settings({"brokers": [_ANY_BROKER], key: value})
    except ValueError:
        return _REFUSED
    return _without_secrets(value)


def _without_secrets(value: object) -> object:
    """Hide the secrets in a setting: the entry of a sensor may have keys of its own, to any depth."""
    if isinstance(value, dict):
        return {key: _HIDDEN if _SECRET_NAME.search(key) else _without_secrets(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(entry) for entry in value]
    return _USER_OF_URL.sub(f"//{_HIDDEN}@", value) if isinstance(value, str) else value


def _section(section: str, entries: object) -> object:
    if not isinstance(entries, dict):
        return _HIDDEN
    return {key: value if _is_public(section, key, value) else _HIDDEN for key, value in entries.items()}


def _is_public(section: str, key: str, value: object) -> bool:
    if (section, key) == ("mqtt", "username"):
        return isinstance(value, str)
    # The path of a file on the board, not the content of that file.
    return section == "tls" and key in TLS_FILES and isinstance(value, str) and value.startswith("/")


def read_certificate(file: Path, kind: str) -> bytes:
    """Return the content of a certificate file, or of a private key (kind "key"), after checking it.

    Raises KitError (exit code 2).
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ed448, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        content = file.read_bytes()
        if kind == "key":
            keys = [load_pem_private_key(content, None).public_key()]
        else:
            keys = [one.public_key() for one in x509.load_pem_x509_certificates(content)]
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    except (ValueError, TypeError) as error:
        # TypeError: the key is encrypted; a board cannot ask for its passphrase.
        what = "an unencrypted private key" if kind == "key" else "a certificate"
        raise KitError(f"{file} is not {what} in PEM — make one: umqtt certs", EXIT_USAGE) from error
    if any(isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) for key in keys):
        raise KitError(
            f"{file}: MicroPython's TLS knows no Ed25519 and no Ed448 — use ECDSA with P-256, or RSA: umqtt certs",
            EXIT_USAGE,
        )
    return content


def change_from_json(text: bytes, where: str, folder: Path) -> Change:
    """Return the Change in a JSON object; certificate paths are relative to `folder`. Raises KitError (exit code 2).

        {"settings": {"device_id": "pump-7", "brokers": ["mqtts://broker.example"]},
         "wifi": [{"ssid": "workshop", "password": "…"}], "mqtt": {"username": "pump-7", "password": "…"},
         "tls": {"ca": "ca.crt"}}
    """
    try:
        values = loads(text)
    except ValueError as error:
        # The message does not quote the text, which holds secrets.
        why = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise KitError(f"{where} is not JSON ({why}) — see: umqtt provision --help", EXIT_USAGE) from None
    if not isinstance(values, dict):
        raise KitError(f"{where} must be an object with some of: {', '.join(sorted(_FROM_KEYS))}", EXIT_USAGE)
    for key in values:
        if key not in _FROM_KEYS:
            raise KitError(f"{where}: {key!r} is not known — known are: {', '.join(sorted(_FROM_KEYS))}", EXIT_USAGE)
    change = Change()
    change.settings = _object(values, "settings", where)
    if "wifi" in values:
        change.wifi = _networks(values["wifi"], where)
    change.mqtt = _object(values, "mqtt", where)
    tls = _object(values, "tls", where)
    for key, file in tls.items():
        if key not in TLS_FILES or not isinstance(file, str):
            raise KitError(f"{where}: tls.{key}: give files for {', '.join(TLS_FILES)}", EXIT_USAGE)
        change.tls[key] = read_certificate(folder / file, key)
    return change


def set_from_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the settings in KEY=VALUE. Raises KitError.

    VALUE is JSON, or else text, unless it begins like a list or an object; brokers are separated by spaces.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise KitError(f"--set {pair!r}: must be KEY=VALUE, for instance interval_ms=5000", EXIT_USAGE)
        try:
            settings[key] = loads(text)
        except ValueError as error:
            if text.lstrip()[:1] in ("[", "{"):
                raise KitError(f"--set {pair!r}: is not JSON ({error}) — correct it", EXIT_USAGE) from None
            settings[key] = text.split() if key == "brokers" else text
    return settings


def read_private(file: Path) -> bytes:
    """Return the content of a file that holds secrets.

    Raises KitError (exit code 2), also if others on this computer may read it.
    """
    try:
        mode = file.stat().st_mode
        if not stat.S_ISDIR(mode) and mode & 0o077:
            raise KitError(f"{file} holds secrets and others may read it — try: chmod 600 {file}", EXIT_USAGE)
        return file.read_bytes()
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error


def _object(values: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise KitError(f"{where}: {key}: must be an object", EXIT_USAGE)
    return found


def _networks(values: object, where: str) -> list[tuple[str, str | None]]:
    networks: list[tuple[str, str | None]] = []
    for value in values if isinstance(values, list) else [None]:
        entry = value if isinstance(value, dict) else {}
        ssid = entry.get("ssid")
        if not isinstance(ssid, str) or not entry.keys() <= {"ssid", "password"}:
            raise KitError(f'{where}: wifi: must be a list of {{"ssid": …, "password": …}}', EXIT_USAGE)
        networks.append((ssid, entry.get("password")))
    return networks
