"""Defines and checks what settings.json and secrets.json may hold, with errors that name the file and the key.

    settings.json  {"brokers": ["mqtts://broker.example"], "interval_ms": 10000, "wifi": ["workshop", "phone"],
                    "sensors": [{"module": "dht22", "pin": 4, "name": "cellar"}]}
    secrets.json   {"wifi": {"workshop": "password"}, "mqtt": {"username": "pump-7", "password": "…"},
                    "tls": {"ca": "/ca.pem", "cert": "/pump-7.pem", "key": "/pump-7.key"},
                    "commands": {"key": "64 hexadecimal digits"}}

A missing key has its value in DEFAULTS; docs/firmware.md describes each. The host checks with the same functions
before it deploys, and imports this file by its path, so it needs nothing else of the firmware. settings_files.py
reads and writes both files on the board. No error repeats a secret.
"""

FILE = "settings.json"
SECRETS = "secrets.json"

DEFAULTS = {
    "device_id": None,
    "brokers": [],
    "cluster": None,
    "interval_ms": 60_000,
    "keep_alive": 60,
    "outbox": None,
    "topics": None,
    "per_minute": 0,
    "telemetry_qos": 1,
    "encoding": "json",
    "expires_s": 0,
    "wifi": [],
    "country": "",
    "hostname": None,
    "static_ip": None,
    "power_save": False,
    "ntp_host": None,
    "log_level": "info",
    "sensors": [],
    "watchdog_ms": 30_000,
    "sleep_s": 0,
    "home_assistant": False,
    "update_url": None,
    "unsigned_commands": False,
    "board": None,
}

# Keys that a running board applies at once; the others take effect at the next boot.
LIVE = ("interval_ms", "telemetry_qos", "expires_s", "log_level", "sleep_s", "home_assistant")

# Keys that no command changes, signed or not: they decide which commands are accepted.
CABLE_ONLY = ("unsigned_commands",)

LEVELS = ("debug", "info", "warning", "error")
_ENCODINGS = ("json", "cbor")

# key: (least, most, unit). 0 means off or never, where it is allowed.
_NUMBERS = {
    "interval_ms": (10, 86_400_000, "milliseconds"),
    "keep_alive": (0, 65535, "seconds"),
    "outbox": (1, 10_000, "messages"),
    "per_minute": (0, 60_000, "data points"),
    "telemetry_qos": (1, 2, "QoS"),
    "expires_s": (0, 31_536_000, "seconds"),
    "watchdog_ms": (0, 3_600_000, "milliseconds"),
    "sleep_s": (0, 604_800, "seconds"),
}
# Leaves that a board sends on, and those on which it gets messages, if a cloud has a topic for them.
_LEAVES = ("telemetry", "status", "log", "reply", "reported", "cmd", "desired", "throttle", "errors")
_SWITCHES = ("power_save", "home_assistant", "unsigned_commands")
_SHORTEST_WATCHDOG_MS = 1000
_LONGEST_NAME = 64
# A label in DNS (RFC 1035) has at most 63 characters; the ports accept 32.
_LONGEST_HOSTNAME = 32
# IEEE 802.11: an SSID has at most 32 bytes; a WPA2 passphrase 8 to 63 characters, or 64 as hex digits.
_LONGEST_SSID = 32
_MOST_SENSORS = 16


class SettingsError(ValueError):
    """A setting that is not allowed. file: str; key: str, "" for the whole file; problem: str. One line of text."""

    def __init__(self, file, key, problem):
        super().__init__(": ".join([part for part in (file, key, problem) if part]))
        self.file = file
        self.key = key
        self.problem = problem


def check_settings(values, file=FILE):
    """Return values with the defaults filled in. Raises SettingsError."""
    check_object(values, DEFAULTS, file, "")
    merged = dict(DEFAULTS)
    merged.update(values)
    for key in DEFAULTS:
        value = merged[key]
        if value is None and DEFAULTS[key] is None:
            continue
        if key in _NUMBERS:
            problem = _number_problem(value, *_NUMBERS[key])
        elif key in _SWITCHES:
            problem = None if isinstance(value, bool) else "must be true or false"
        else:
            problem = _CHECKS[key](value)
        if problem:
            raise SettingsError(file, key, problem)
    if 0 < merged["watchdog_ms"] < _SHORTEST_WATCHDOG_MS:
        raise SettingsError(file, "watchdog_ms", "must be 0 (off) or at least %d" % _SHORTEST_WATCHDOG_MS)
    if merged["encoding"] == "cbor" and merged["home_assistant"]:
        raise SettingsError(file, "encoding", "must be json: Home Assistant reads no CBOR")
    if merged["encoding"] == "cbor" and isinstance(merged["topics"], dict):
        raise SettingsError(file, "encoding", "must be json: the payloads in topics are made of it")
    if merged["topics"] and merged["home_assistant"]:
        raise SettingsError(file, "home_assistant", "must be false: it looks for fleet/…, not for other topics")
    if merged["per_minute"] and not merged["topics"]:
        raise SettingsError(file, "per_minute", "must be 0: it needs topics")
    return merged


def check_secrets(values, file=SECRETS):
    """Return values with missing sections filled in. Raises SettingsError, which never repeats a secret."""
    # commands.rotation: the SHA-256 of the last rotation that was carried out, see rotation.py.
    sections = {
        "wifi": None, "mqtt": ("username", "password", "sas_key"), "tls": ("ca", "cert", "key"),
        "commands": ("key", "rotation"),
    }  # fmt: skip
    check_object(values, sections, file, "")
    filled = {}
    for section, known in sections.items():
        entries = filled[section] = values.get(section, {})
        check_object(entries, known, file, section)
        for key, value in entries.items():
            if not isinstance(value, str):
                raise SettingsError(file, section + "." + key, "must be text")
            if section == "wifi" and value and not 8 <= len(value.encode()) <= 64:
                raise SettingsError(file, "wifi." + key, 'a password has 8 to 63 characters; "" is an open network')
            if section == "tls" and not (value.startswith("/") and len(value) > 1):
                raise SettingsError(file, "tls." + key, "must be the path of a file on the board, for instance /ca.pem")
            if section == "commands" and (len(value) != 64 or value.strip("0123456789abcdef")):
                raise SettingsError(file, "commands." + key, "must be 64 hexadecimal digits: umqtt keys make")
    # [MQTT-3.1.2-22] a password without a user name cannot be sent.
    if ("password" in filled["mqtt"] or "sas_key" in filled["mqtt"]) and "username" not in filled["mqtt"]:
        raise SettingsError(file, "mqtt.username", "is missing, and MQTT has no password without a user name")
    tls = filled["tls"]
    for one, other in (("cert", "key"), ("key", "cert"), ("cert", "ca")):
        if one in tls and other not in tls:
            raise SettingsError(file, "tls." + other, "is missing, and tls.%s is of no use without it" % one)
    return filled


def check_together(settings, secrets):
    """Check settings and secrets for mistakes that need both files to see. Raises SettingsError."""
    if "sas_key" in secrets["mqtt"] and not settings["topics"]:
        raise SettingsError(SECRETS, "mqtt.sas_key", "needs topics: umqtt provision --cloud azure")
    if settings["brokers"][0].startswith("mqtts:") and "ca" not in secrets["tls"]:
        raise SettingsError(SECRETS, "tls.ca", "is missing: without it no mqtts broker can be trusted")


def check_object(values, known, file, section):
    """Raise SettingsError unless values is a dict with no other keys than those in known (None: any keys)."""
    if not isinstance(values, dict):
        raise SettingsError(file, section, "must be an object")
    if known is None:
        return
    for key in values:
        if key not in known:
            name = section + "." + key if section else key
            raise SettingsError(file, name, "unknown key; " + _nearest(key, sorted(known)))


def _nearest(key, known):
    # Compares names by the pairs of letters that they share, which costs a board little.
    def likeness(name):
        shared = sum([name[i : i + 2] in key for i in range(len(name) - 1)])
        return 2 * shared / (len(name) + len(key) - 2) if len(name) + len(key) > 2 else 0

    best = max(known, key=likeness)
    return "did you mean %s?" % best if likeness(best) > 0.5 else "known are " + ", ".join(known)


def _is_text(value, most, least=1):
    return isinstance(value, str) and least <= len(value.encode()) <= most


def _only(text, others):
    # Returns None, or a problem that names the first character that is not an ASCII letter, a digit or in others.
    for character in text:
        if not (character.isalpha() or character.isdigit() or character in others) or ord(character) > 126:
            return "%r: only letters, digits and %s are allowed" % (character, " ".join(others))
    return None


def _number_problem(value, least, most, unit):
    # True is an int in Python, but not a number of seconds.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        if unit == "QoS":
            return "must be %d or %d" % (least, most)
        return "must be a whole number of %s from %d to %d" % (unit, least, most)
    return None


def _device_id_problem(value):
    if not _is_text(value, _LONGEST_NAME):
        return "must be null or text of 1 to %d characters" % _LONGEST_NAME
    # It is a level of topic names [MQTT-4.7.1] and appears unescaped in shell commands and file names.
    return _only(value, "-_.:")


def _brokers_problem(value):
    if not isinstance(value, list) or not value:
        return 'must be a list of at least one address, for instance ["mqtt://192.168.1.2:1883"]'
    for position, address in enumerate(value):
        problem = _address_problem(address)
        if problem:
            return "address %d: %s" % (position + 1, problem)
        if address.startswith("mqtts:") != value[0].startswith("mqtts:"):
            # Otherwise, someone who blocks the encrypted broker would get the readings in the clear.
            return "address %d: mqtts and mqtt must not be mixed" % (position + 1)
    return None


def _topics_problem(value):
    if isinstance(value, str):
        return None if "{device_id}" in value and "{leaf}" in value else "must have {device_id} and {leaf}"
    if not isinstance(value, dict):
        return "must be null, text with {device_id} and {leaf}, or an object with a topic for each leaf"
    missing = [leaf for leaf in _LEAVES[:5] if leaf not in value]
    unknown = [leaf for leaf in value if leaf not in _LEAVES]
    if missing or unknown:
        return "%s %s" % ("needs" if missing else "cannot have", ", ".join(missing or unknown))
    for leaf in value:
        entry = value[leaf]
        topic = entry[0] if isinstance(entry, list) and len(entry) > 1 else entry
        if not _is_text(topic, 255):
            return leaf + ": must be a topic, or a list of a topic and payloads"
        if leaf in _LEAVES[:5] and ("+" in topic or "#" in topic):
            return leaf + ": a topic that is sent to has no wildcards"
    return None


def _cluster_problem(value):
    if _is_text(value, _LONGEST_NAME):
        return None
    return "must be null or the name of the cluster, of 1 to %d characters" % _LONGEST_NAME


def _address_problem(address):
    if not isinstance(address, str) or not address.startswith(("mqtt://", "mqtts://")):
        return "must begin with mqtt:// or mqtts://"
    rest = address[address.index("://") + 3 :]
    # Checked before a message quotes the address, which may hold a password.
    if "@" in rest:
        return "must not hold a user name; put it into secrets.json under mqtt"
    if not _is_host_and_port(rest):
        return "%r: must be like mqtt://host or mqtt://host:1883" % address
    return None


def _is_host_and_port(text):
    # No more than umqtt_robust.servers.parse_url() takes, which is not loaded for this.
    host, mark, rest = text.partition(":")
    rest = mark + rest
    if text[:1] == "[":
        host, mark, rest = text[1:].partition("]")
        if not mark:
            return False
    # isdigit() of CPython accepts the digits of every script.
    if rest and (rest[0] != ":" or rest[1:].strip("0123456789") or not 0 < int(rest[1:] or 0) < 65536):
        return False
    if [character for character in host if not "!" <= character <= "~" or character in "/?#[]"]:
        return False
    # The limits of DNS (RFC 1035, 2.3.4); an IPv6 address has no dots.
    return len(host) < 254 and not [label for label in host.rstrip(".").split(".") if not 0 < len(label) < 64]


def _wifi_problem(value):
    if not isinstance(value, list):
        return "must be a list of network names"
    for position, ssid in enumerate(value):
        if not _is_text(ssid, _LONGEST_SSID):
            return "network %d: must be text of 1 to %d bytes" % (position + 1, _LONGEST_SSID)
    return None


def _country_problem(value):
    if value == "" or _is_text(value, 2, 2) and "A" <= min(value) and max(value) <= "Z":
        return None
    return 'must be "" or two capital letters (ISO 3166), for instance "DE"'


def _hostname_problem(value):
    if not _is_text(value, _LONGEST_HOSTNAME) or "-" in (value[0], value[-1]):
        return "must be null or text of 1 to %d characters, the first and last no hyphen" % _LONGEST_HOSTNAME
    return _only(value, "-")


def _static_ip_problem(value):
    numbers = [_ipv4(part) for part in value] if isinstance(value, list) else []
    if len(numbers) != 4 or -1 in numbers:
        return 'must be null or four addresses, like ["192.168.1.50", "255.255.255.0", "192.168.1.1", "192.168.1.1"]'
    address, netmask, gateway, _ = numbers
    hosts = ~netmask & 0xFFFFFFFF
    # A netmask has no 1 bit after a 0 bit; the first and the last address of a network are not for hosts.
    if hosts & (hosts + 1) or hosts < 3:
        return "%s: is no netmask, which is the second" % value[1]
    if address & hosts in (0, hosts):
        return "%s: is no address of a board in its network (netmask %s)" % (value[0], value[1])
    if (address ^ gateway) & netmask or address == gateway:
        return "%s: the gateway must be another address of the board's network" % value[2]
    return None


def _ipv4(text):
    # Returns the address as a number, or -1.
    parts = text.split(".") if isinstance(text, str) else ()
    if len(parts) != 4:
        return -1
    number = 0
    for part in parts:
        # Some programs read a leading zero as octal; no port does.
        if not 0 < len(part) < 4 or part.strip("0123456789") or int(part) > 255 or part != str(int(part)):
            return -1
        number = number << 8 | int(part)
    return number


def _ntp_host_problem(value):
    if value == "":
        return None
    # An IPv6 address has no brackets here, and no port.
    if _is_text(value, 255) and _is_host_and_port("[%s]" % value if value.count(":") > 1 else value):
        return None
    return 'must be null, "" (off), host or host:port'


def _log_level_problem(value):
    return None if value in LEVELS else "must be one of " + ", ".join(LEVELS)


def _encoding_problem(value):
    return None if value in _ENCODINGS else "must be one of " + ", ".join(_ENCODINGS)


def _sensors_problem(value):
    if not isinstance(value, list) or len(value) > _MOST_SENSORS:
        return "must be a list of at most %d objects" % _MOST_SENSORS
    names = []
    for position, sensor in enumerate(value):
        where = "sensor %d: " % (position + 1)
        module = sensor.get("module") if isinstance(sensor, dict) else None
        if not _is_text(module, 32) or _only(module, "_") or module[0].isdigit():
            return where + 'must be an object like {"module": "dht22", "pin": 4, "name": "cellar"}'
        name = sensor.get("name", "")
        if not isinstance(name, str) or len(name) > 32 or _only(name, "-_"):
            return where + "name: must be text of at most 32 letters, digits, - and _"
        if (module, name) in names:
            # Their metrics would have the same names, and one of them would be lost.
            return where + "another one of %s has the same name; give each its own" % module
        if not _is_finite(sensor):
            return where + "numbers must be finite"
        names.append((module, name))
    return None


def _is_finite(value):
    # JSON has no infinity: what the board wrote for 1e999 could not be read at the next boot.
    if isinstance(value, (dict, list)):
        return all(_is_finite(part) for part in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or value - value == 0


def _update_url_problem(value):
    if _is_text(value, 255) and value.startswith(("http://", "https://")) and "@" not in value:
        return None
    return "must be null or the beginning of the addresses that may be loaded, https://… or http://…, without a user"


def _board_problem(value):
    return _only(value, "_") if _is_text(value, _LONGEST_NAME) else "must be null or the name of a folder in boards/"


_CHECKS = {
    "device_id": _device_id_problem,
    "brokers": _brokers_problem,
    "cluster": _cluster_problem,
    "topics": _topics_problem,
    "wifi": _wifi_problem,
    "country": _country_problem,
    "hostname": _hostname_problem,
    "static_ip": _static_ip_problem,
    "ntp_host": _ntp_host_problem,
    "log_level": _log_level_problem,
    "encoding": _encoding_problem,
    "sensors": _sensors_problem,
    "update_url": _update_url_problem,
    "board": _board_problem,
}
