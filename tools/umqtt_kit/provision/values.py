"""What is to be on a board: what is there, changed by what was asked for, and checked as the board will check it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umqtt_kit.device import Configuration
from umqtt_kit.device.configuration import check
from umqtt_kit.errors import EXIT_USAGE, KitError

#: Where the certificates lie on a board, by their key in secrets.json.
TLS_FILES = {"ca": "/ca.pem", "cert": "/cert.pem", "key": "/key.pem"}
_HIDDEN = "(set)"
_FROM_KEYS = frozenset({"settings", "wifi", "mqtt", "tls"})


@dataclass
class Change:
    """What was asked for; what is not named stays.

    settings: keys of settings.json, None takes one out (it has its default again). wifi: networks in order with their
    passwords, "" for an open one, None to keep the password that is there; an empty list for no Wi-Fi. mqtt: username
    and password, None takes one out. tls: contents of certificate files by TLS_FILES' keys. repr() shows no secret.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    wifi: list[tuple[str, str | None]] | None = field(default=None, repr=False)
    mqtt: dict[str, str | None] = field(default_factory=dict, repr=False)
    tls: dict[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Target:
    """Files as they are to be on the board. repr() shows no secret."""

    settings: dict[str, Any]
    secrets: dict[str, Any] = field(repr=False)
    certificates: dict[str, bytes] = field(repr=False)


def target(current: Configuration, change: Change) -> Target:
    """Raises the firmware's SettingsError (a ValueError whose text is one line and repeats no secret)."""
    settings = dict(current.settings or {}) | change.settings
    secrets = {name: dict(section) for name, section in (current.secrets or {}).items() if isinstance(section, dict)}
    if change.wifi is not None:
        known = secrets.get("wifi", {})
        settings["wifi"] = [ssid for ssid, _ in change.wifi]
        secrets["wifi"] = {
            ssid: known.get(ssid, "") if password is None else password for ssid, password in change.wifi
        }
    if change.mqtt:
        merged = secrets.get("mqtt", {}) | change.mqtt
        secrets["mqtt"] = {key: value for key, value in merged.items() if value is not None}
    if change.tls:
        secrets["tls"] = secrets.get("tls", {}) | {key: TLS_FILES[key] for key in change.tls}
    wanted = {key: value for key, value in settings.items() if value is not None}
    check(wanted, secrets)
    return Target(wanted, secrets, {TLS_FILES[key]: content for key, content in change.tls.items()})


def masked(settings: Mapping[str, Any] | None, secrets: Mapping[str, Any] | None) -> dict[str, Any]:
    """Both files for people and logs: of a secret it says that it is set, not even how long it is."""
    hidden = {
        section: {key: _HIDDEN if section == "wifi" or key == "password" else value for key, value in entries.items()}
        for section, entries in (secrets or {}).items()
        if isinstance(entries, dict)
    }
    return {"settings": dict(settings) if settings is not None else None, "secrets": hidden}


def read_certificate(file: Path, kind: str) -> bytes:
    """A certificate file, or a private key (kind "key"), found good. Raises KitError (exit code 2)."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        content = file.read_bytes()
        if kind == "key":
            load_pem_private_key(content, None)
        else:
            x509.load_pem_x509_certificates(content)
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    except (ValueError, TypeError) as error:
        # TypeError: the key is encrypted; a board cannot ask for its passphrase.
        what = "an unencrypted private key" if kind == "key" else "a certificate"
        raise KitError(f"{file} is not {what} in PEM — make one: umqtt certs", EXIT_USAGE) from error
    return content


def change_from_json(text: str, where: str, folder: Path) -> Change:
    """A Change from a JSON object; certificate paths are relative to `folder`. Raises KitError (exit code 2).

    {"settings": {"device_id": "pump-7", "brokers": ["mqtts://broker.example"]},
     "wifi": [{"ssid": "workshop", "password": "…"}], "mqtt": {"username": "pump-7", "password": "…"},
     "tls": {"ca": "ca.crt"}}
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        # Not the text itself: it holds secrets.
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise KitError(f"{where} is not JSON{place} — see: umqtt provision --help", EXIT_USAGE) from None
    if not isinstance(values, dict) or not values.keys() <= _FROM_KEYS:
        raise KitError(f"{where} must be an object with some of: {', '.join(sorted(_FROM_KEYS))}", EXIT_USAGE)
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
    """Settings from KEY=VALUE; VALUE is JSON, or else text. Raises KitError (exit code 2)."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise KitError(f"--set {pair!r}: must be KEY=VALUE, for instance interval_ms=5000", EXIT_USAGE)
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings


def require_private(file: Path) -> None:
    """Raises KitError (exit code 2) when others on this computer may read a file that holds secrets."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
    if mode & 0o077:
        raise KitError(f"{file} holds secrets and others may read it — try: chmod 600 {file}", EXIT_USAGE)


def _object(values: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise KitError(f"{where}: {key}: must be an object", EXIT_USAGE)
    return found


def _networks(values: object, where: str) -> list[tuple[str, str | None]]:
    networks: list[tuple[str, str | None]] = []
    for value in values if isinstance(values, list) else [None]:
        if not isinstance(value, dict) or not value.keys() <= {"ssid", "password"} or "ssid" not in value:
            raise KitError(f'{where}: wifi: must be a list of {{"ssid": …, "password": …}}', EXIT_USAGE)
        networks.append((value["ssid"], value.get("password")))
    return networks
