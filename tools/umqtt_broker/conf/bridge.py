"""Reads the section of one bridge in mosquitto.conf, from `connection NAME` to its end, as a BridgeConfig.

The rules are those of mosquitto.conf(5), "Configuring bridges". In addition there is remote_password_file, so that the
configuration need not contain a password. An unsupported key is an error, and never ignored.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..protocol.topics import is_topic_filter, is_topic_name
from ..settings.bridge import BridgeConfig, TopicRule
from . import values
from .lines import Line, Problems

# key: (default as text, meaning). A key that has two names in mosquitto is listed under the newer one.
BRIDGE_KEYS: dict[str, tuple[str, str]] = {
    "connection": ("", "begins a bridge; its name"),
    "address": ("", "host[:port] of the remote broker, and of others to fail over to"),
    "topic": ("", "pattern [out|in|both [qos [local-prefix [remote-prefix]]]]: what is shared; any number of times"),
    "remote_clientid": ("NAME.HOSTNAME", "client identifier at the remote broker"),
    "remote_username": ("", "user name at the remote broker"),
    "remote_password": ("", "password at the remote broker; better: remote_password_file"),
    "remote_password_file": ("", "file whose first line is that password"),
    "local_clientid": ("local.REMOTE_CLIENTID", "client identifier of the bridge's session at this broker"),
    "cleansession": ("false", "true: neither broker keeps anything for the bridge while the link is down"),
    "keepalive_interval": ("60", "seconds, at least 5"),
    "restart_timeout": ("5 30", "seconds between attempts: constant, or least and longest of a random wait"),
    "try_private": ("true", "tell the remote broker that this is a bridge, which prevents loops"),
    "notifications": ("true", "publish the bridge's state, 1 or 0, retained"),
    "notifications_local_only": ("false", "publish it at this broker only"),
    "notification_topic": ("$SYS/broker/connection/REMOTE_CLIENTID/state", "where"),
    "round_robin": ("false", "true: all addresses are equal; false: the first is returned to when it is back"),
    "start_type": ("automatic", "the only one there is"),
    "bridge_attempt_unsubscribe": ("true", "end remote subscriptions to topics that go out only"),
    "bridge_outgoing_retain": ("true", "false: messages go to the remote broker without the retain flag"),
    "bridge_protocol_version": ("mqttv311", "mqttv311, mqttv31, or mqttv50: the properties of messages cross too"),
    "bridge_cafile": ("", "PEM file of those who sign the remote broker's certificate; switches TLS on"),
    "bridge_capath": ("", "the same as a folder"),
    "bridge_certfile": ("", "PEM file of the bridge's own certificate"),
    "bridge_keyfile": ("", "PEM file of its private key"),
    "bridge_insecure": ("false", "true: the remote broker's certificate may be for another host"),
    "bridge_tls_version": ("tlsv1.2", "the lowest version spoken, tlsv1.2 or tlsv1.3"),
}

ALIASES = {
    "addresses": "address",
    "clientid": "remote_clientid",
    "username": "remote_username",
    "password": "remote_password",
}

# Keys of mosquitto that this broker does not support, and what to do instead.
UNSUPPORTED = {
    "threshold": "it belongs to start_type lazy; remove it",
    "idle_timeout": "it belongs to start_type lazy; remove it",
    "local_cleansession": "it follows cleansession; remove it",
    "local_username": "a bridge is not asked for credentials by its own broker; remove it",
    "local_password": "a bridge is not asked for credentials by its own broker; remove it",
    "bridge_alpn": "remove it",
    "bridge_bind_address": "remove it and let the system's routes choose",
    "bridge_identity": "pre-shared keys are not supported; use bridge_cafile",
    "bridge_psk": "pre-shared keys are not supported; use bridge_cafile",
    "bridge_ciphers": "the default ciphers are all safe; remove it",
    "bridge_ciphers_tls1.3": "the default suites are all safe; remove it",
    "bridge_max_packet_size": "remove it",
    "bridge_max_topic_alias": "remove it",
    "bridge_receive_maximum": "remove it",
    "bridge_reload_type": "a bridge is changed at the next start; remove it",
    "bridge_require_ocsp": "remove it",
    "bridge_session_expiry_interval": "remove it",
    "bridge_tcp_keepalive": "use keepalive_interval",
    "bridge_tcp_user_timeout": "use keepalive_interval",
    "bridge_tls_use_os_certs": "name the system's authorities with bridge_cafile or bridge_capath",
}


class _Explained(ValueError):
    """A value is wrong, and the text says why. The text of other ValueErrors says what would be right."""


def bridge_of(lines: Sequence[Line], problems: Problems) -> BridgeConfig | None:
    """Return the BridgeConfig of one section, whose first line is `connection NAME`.

    Errors are noted in `problems`; then the result is None. A key that is given twice is a warning.
    """
    settings: dict[str, object] = {}
    seen: dict[str, str] = {}
    before = len(problems.errors)
    topics: list[TopicRule] = []
    for line in lines:
        key = ALIASES.get(line.key, line.key)
        if key in UNSUPPORTED:
            problems.at(line, f"{line.key} is not supported: {UNSUPPORTED[key]}")
            continue
        if not line.value:
            problems.at(line, f"{line.key} has no value — write it behind the key")
            continue
        if key != "topic" and key in seen:
            problems.warn(line.file, line.number, f"{line.key} is already set at {seen[key]} — this line takes effect")
        seen[key] = line.where
        try:
            if key == "topic":
                topics.append(parse_topic(line.value))
            else:
                name, convert = _SETTINGS[key]
                settings[name] = convert(line.value)
        except _Explained as error:
            problems.at(line, f"{line.key}: {error}")
        except ValueError as error:
            problems.at(line, f"{line.key} cannot be {line.shown} — it is {error}")
    if "remote_password" in seen and "remote_password_file" in seen:
        problems.at(lines[0], "remote_password and remote_password_file: give one of them")
    if len(problems.errors) > before:
        return None
    settings.pop("start_type", None)
    try:
        given: dict[str, Any] = {"addresses": (), "topics": tuple(topics), **settings}
        return BridgeConfig(**given)
    except ConfigError as error:
        problems.at(lines[0], str(error))
        return None


def parse_topic(value: str) -> TopicRule:
    """Return the rule of a `topic` line. value: what follows `topic`. Raises ValueError."""
    words = value.split()
    if len(words) > 5:
        raise _Explained(f"{words[5]} is one word too many")
    pattern, direction, qos, local_prefix, remote_prefix = words + ["out", "0", '""', '""'][len(words) - 1 :]
    if direction not in ("out", "in", "both"):
        raise _Explained(f"direction {direction} is neither out, in nor both")
    if qos not in ("0", "1", "2"):
        raise _Explained(f"QoS {qos} is neither 0, 1 nor 2")
    rule = TopicRule(_topic(pattern), direction, int(qos), _topic(local_prefix), _topic(remote_prefix))
    for prefix in (rule.local_prefix, rule.remote_prefix):
        if prefix and not is_topic_name(prefix):
            raise _Explained(f"prefix {prefix.decode()} is no topic name: it must have no + and no #")
    if not rule.pattern and not (rule.local_prefix and rule.remote_prefix):
        raise _Explained('an empty pattern "" needs both prefixes: they are the topic at either end')
    for topic_filter in (rule.local_filter, rule.remote_filter):
        if not is_topic_filter(topic_filter) or len(topic_filter) > 65535:
            raise _Explained(f"{topic_filter.decode()} is no topic filter: + stands for a level, # for the last ones")
    return rule


def _topic(word: str) -> bytes:
    return b"" if word == '""' else word.encode()


def _addresses(value: str) -> tuple[tuple[str, int], ...]:
    return tuple(_address(word) for word in value.split())


def _address(word: str) -> tuple[str, int]:
    host, colon, port = word.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        # As in mosquitto, an IPv6 address needs its port: otherwise its last colon cannot be told from the port's.
        if ":" in word:
            raise _Explained(f"{word}: an IPv6 address is written [ADDRESS]:PORT")
        host, port = word, "1883"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise _Explained(f"{word} is not HOST or HOST:PORT")
    return host, int(port)


def _restart_timeout(value: str) -> tuple[int, int]:
    words = value.split()
    if len(words) > 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        raise _Explained(f"{value} is not one or two numbers of seconds above 0")
    base, cap = int(words[0]), int(words[-1])
    if base > cap:
        raise _Explained(f"the longest wait, {cap}, is below the shortest, {base}")
    return base, cap


_LEVELS = {"mqttv311": 4, "mqttv31": 3, "mqttv50": 5}


def _protocol_level(value: str) -> int:
    return _LEVELS[values.choice(*_LEVELS)(value)]


def _notification_topic(value: str) -> bytes:
    if not is_topic_name(value.encode()):
        raise _Explained(f"{value} is no topic name")
    return value.encode()


def _password_file(value: str) -> bytes:
    try:
        return Path(value).read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
    except OSError as error:
        raise _Explained(f"cannot read {value} ({error.strerror})") from error


# key: the field of BridgeConfig, and the function that makes its value from the text.
_SETTINGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "connection": ("name", str),
    "address": ("addresses", _addresses),
    "remote_clientid": ("remote_client_id", str.encode),
    "remote_username": ("remote_username", str.encode),
    "remote_password": ("remote_password", str.encode),
    "remote_password_file": ("remote_password", _password_file),
    "local_clientid": ("local_client_id", str.encode),
    "cleansession": ("clean_session", values.boolean),
    "keepalive_interval": ("keep_alive", values.integer(5, 65535)),
    "restart_timeout": ("restart_timeout", _restart_timeout),
    "try_private": ("try_private", values.boolean),
    "notifications": ("notifications", values.boolean),
    "notifications_local_only": ("notifications_local_only", values.boolean),
    "notification_topic": ("notification_topic", _notification_topic),
    "round_robin": ("round_robin", values.boolean),
    "start_type": ("start_type", values.choice("automatic")),
    "bridge_attempt_unsubscribe": ("attempt_unsubscribe", values.boolean),
    "bridge_outgoing_retain": ("outgoing_retain", values.boolean),
    "bridge_protocol_version": ("protocol_level", _protocol_level),
    "bridge_cafile": ("cafile", str),
    "bridge_capath": ("capath", str),
    "bridge_certfile": ("certfile", str),
    "bridge_keyfile": ("keyfile", str),
    "bridge_insecure": ("insecure", values.boolean),
    "bridge_tls_version": ("tls_version", values.tls_version),
}
