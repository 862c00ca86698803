"""settings.json and secrets.json: what they may hold, checked with errors that name the file and the key.

    settings.json  {"device_id": null, "brokers": ["mqtt://192.168.1.2:1883"], "interval_ms": 1000,
                    "keep_alive": 60, "wifi": ["workshop", "phone"], "outbox": 64}
    secrets.json   {"wifi": {"workshop": "password"}, "mqtt": {"username": "pump-7", "password": "…"}}

device_id null means machine.unique_id() in hex. interval_ms is in milliseconds, keep_alive in seconds (0:
off). wifi lists the networks to try, in order (none: the network is a cable's or an operating system's); their
passwords are in secrets.json (none: an open network). outbox is in messages. A key left out has the value of
DEFAULTS. The host checks with the same functions before it deploys. No error text repeats a secret.
"""

import json

DEFAULTS = {"device_id": None, "brokers": [], "interval_ms": 1000, "keep_alive": 60, "wifi": [], "outbox": 64}

_SHORTEST_INTERVAL_MS = 10
_LONGEST_INTERVAL_MS = 86_400_000
_LONGEST_KEEP_ALIVE = 65535
_LARGEST_OUTBOX = 10_000
_LONGEST_NAME = 64
_SCHEMES = ("mqtt://", "mqtts://")
# IEEE 802.11: an SSID has at most 32 bytes.
_LONGEST_SSID = 32


class SettingsError(ValueError):
    """file: str, key: str (or "" when it is the whole file), problem: str. Its text is one line."""

    def __init__(self, file, key, problem):
        super().__init__(": ".join([part for part in (file, key, problem) if part]))
        self.file = file
        self.key = key
        self.problem = problem


def load(folder):
    """(settings, secrets) from the two files in folder, checked, with defaults filled in.

    Raises SettingsError. secrets.json may be missing; settings.json may not, since a board without a broker
    is of no use.
    """
    settings = check_settings(_read(folder, "settings.json", None))
    secrets = check_secrets(_read(folder, "secrets.json", {}))
    return settings, secrets


def check_settings(values, file="settings.json"):
    """values with the defaults filled in. Raises SettingsError."""
    _check_object(values, DEFAULTS, file, "")
    merged = dict(DEFAULTS)
    merged.update(values)
    for key, check in (
        ("device_id", _device_id_problem),
        ("brokers", _brokers_problem),
        ("interval_ms", _interval_problem),
        ("keep_alive", _keep_alive_problem),
        ("wifi", _wifi_problem),
        ("outbox", _outbox_problem),
    ):
        problem = check(merged[key])
        if problem:
            raise SettingsError(file, key, problem)
    return merged


def check_secrets(values, file="secrets.json"):
    """values with the defaults filled in. Raises SettingsError, which never repeats a secret."""
    _check_object(values, ("wifi", "mqtt"), file, "")
    wifi = values.get("wifi", {})
    mqtt = values.get("mqtt", {})
    _check_object(wifi, None, file, "wifi")
    _check_object(mqtt, ("username", "password"), file, "mqtt")
    for section, entries in (("wifi", wifi), ("mqtt", mqtt)):
        for key, value in entries.items():
            if not isinstance(value, str):
                raise SettingsError(file, section + "." + key, "must be text")
    # [MQTT-3.1.2-22] a password without a user name cannot be sent.
    if "password" in mqtt and "username" not in mqtt:
        raise SettingsError(file, "mqtt.username", "is missing, and MQTT has no password without a user name")
    return {"wifi": wifi, "mqtt": mqtt}


def _read(folder, file, missing):
    path = folder.rstrip("/") + "/" + file
    try:
        with open(path) as stream:
            text = stream.read()
    except OSError:
        if missing is None:
            raise SettingsError(file, "", "is not on the board; it must hold at least the list of brokers")
        return missing
    try:
        return json.loads(text)
    except ValueError:
        raise SettingsError(file, "", "is not JSON")


def _check_object(values, known, file, section):
    if not isinstance(values, dict):
        raise SettingsError(file, section, "must be an object")
    if known is None:
        return
    for key in values:
        if key not in known:
            name = section + "." + key if section else key
            raise SettingsError(file, name, "unknown key; known are " + ", ".join(sorted(known)))


def _device_id_problem(value):
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        return "must be null or text of 1 to %d characters" % _LONGEST_NAME
    for character in value:
        # It is a level of topic names [MQTT-4.7.1] and goes unescaped into readers' shells and file names.
        if not (character.isalpha() or character.isdigit() or character in "-_.:") or ord(character) > 126:
            return "%r: only letters, digits and - _ . : are allowed" % character
    return None


def _brokers_problem(value):
    if not isinstance(value, list) or not value:
        return "must be a list of at least one address, for instance [\"mqtt://192.168.1.2:1883\"]"
    for position, address in enumerate(value):
        problem = _address_problem(address)
        if problem:
            return "address %d: %s" % (position + 1, problem)
    return None


def _address_problem(address):
    if not isinstance(address, str) or not address.startswith(_SCHEMES):
        return "must begin with mqtt:// or mqtts://"
    rest = address[address.index("://") + 3:]
    # Checked before anything is quoted: a password belongs in secrets.json.
    if "@" in rest:
        return "must not hold a user name; put it into secrets.json under mqtt"
    host, _, port = rest.rpartition(":") if ":" in rest and not rest.endswith("]") else (rest, "", "")
    if not host or "/" in rest:
        return "%r: must be mqtt://host or mqtt://host:port" % address
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        return "%r: the port must be 1 to 65535" % address
    if not port and rest.endswith(":"):
        return "%r: the port is missing after the colon" % address
    return None


def _interval_problem(value):
    return _whole_number_problem(value, _SHORTEST_INTERVAL_MS, _LONGEST_INTERVAL_MS, "milliseconds")


def _keep_alive_problem(value):
    return _whole_number_problem(value, 0, _LONGEST_KEEP_ALIVE, "seconds")


def _outbox_problem(value):
    return _whole_number_problem(value, 1, _LARGEST_OUTBOX, "messages")


def _whole_number_problem(value, low, high, unit):
    # isinstance(True, int) holds, and true is no number of seconds.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        return "must be a whole number of %s from %d to %d" % (unit, low, high)
    return None


def _wifi_problem(value):
    if not isinstance(value, list):
        return "must be a list of network names"
    for position, ssid in enumerate(value):
        if not isinstance(ssid, str) or not 0 < len(ssid.encode()) <= _LONGEST_SSID:
            return "network %d: must be text of 1 to %d bytes" % (position + 1, _LONGEST_SSID)
    return None
