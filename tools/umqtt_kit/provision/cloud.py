"""What a board is told for a cloud: the rows of umqtt_cli.clouds as a Change, and the questions that a cloud needs."""

from __future__ import annotations

import binascii
import sys
from base64 import b64decode

from umqtt_cli.clouds import CLOUDS
from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.device import Configuration, Info
from umqtt_kit.provision import questions
from umqtt_kit.provision.values import Change

# Keys of settings.json that a cloud decides: with another cloud they are as for that one again.
_DECIDED = ("topics", "per_minute", "home_assistant")


def apply(name: str, change: Change, host: str = "") -> Change:
    """Return the change with what the cloud needs; what the change names itself stays. Raises KitError (exit code 2).

    host: of the cloud; without it, the one in the change's brokers.
    """
    cloud = CLOUDS[name]
    decided = dict.fromkeys(_DECIDED) | cloud.settings
    change.settings = decided | change.settings
    brokers = change.settings.get("brokers") or ([f"{cloud.scheme}://{host}"] if host else [])
    if brokers:
        change.settings["brokers"] = brokers
        host = str(brokers[0]).partition("://")[2].rpartition(":")[0] or str(brokers[0]).partition("://")[2]
    if "{host}" in cloud.username and host:
        change.mqtt["username"] = cloud.username.replace("{host}", host)
    given = change.mqtt.get("password")
    if cloud.secret in ("sas_key", "token") and given:
        # Files and questions have one name for what is secret.
        change.mqtt.pop("password")
        if cloud.secret == "token":
            change.mqtt["username"] = given
        else:
            change.mqtt["sas_key"] = _checked_key(given)
    if cloud.secret != "sas_key":
        change.mqtt.setdefault("sas_key", None)
    if cloud.secret in ("sas_key", "token", "certificate"):
        change.mqtt.setdefault("password", None)
    if cloud.secret == "certificate":
        change.mqtt.setdefault("username", None)
    return change


def ask(name: str, current: Configuration, info: Info) -> Change:
    """Ask at the terminal for what the cloud needs, and for nothing else. Raises KitError without a terminal."""
    cloud = CLOUDS[name]
    if not sys.stdin.isatty():
        raise KitError("there is no terminal to ask on — use --from FILE.json, or --from - (stdin)", EXIT_USAGE)
    change = questions.begin(current, info)
    known = (current.settings or {}).get("brokers")
    # What is on the board may be anything.
    first = known[0] if isinstance(known, list) and known else ""
    shown = first.partition("://")[2] or None if isinstance(first, str) else None
    host = None
    while host is None:
        host = questions.asked(f"Address of {cloud.title}, like {cloud.host}", shown, None)
    change.settings["brokers"] = [f"{cloud.scheme}://{host}"]
    secrets = current.sections
    mqtt = secrets.get("mqtt", {})
    if cloud.username and "{" not in cloud.username:
        user = mqtt.get("username")
        user = questions.asked(_capital(cloud.username), user if isinstance(user, str) else None, None)
        change.mqtt["username"] = user
    if cloud.secret != "certificate":
        secret = questions.ask_secret(_capital(cloud.secret_words), bool(mqtt))
        if secret is not None:
            change.mqtt["password"] = secret
    if cloud.scheme == "mqtts":
        if cloud.ca:
            say(f"The CA certificate is {cloud.ca}.")
        questions.ask_certificates(change, secrets.get("tls", {}), certificate=cloud.secret == "certificate")
    return apply(name, change)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _checked_key(key: str) -> str:
    try:
        size = len(b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        size = 0
    # The board's HMAC takes keys of one block.
    if not 16 <= size <= 64:
        raise KitError("the device's key is 16 to 64 bytes in base64 — copy it from the hub, whole", EXIT_USAGE)
    return key
