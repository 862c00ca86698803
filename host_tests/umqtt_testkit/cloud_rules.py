"""What MQTT clouds refuse, by their own documentation: one row for each rule, with its page and that page's date.

A row is read by cloud_broker. `broken` gets a packet and the link that it came on (cloud_broker.Link) and returns
True if the rule is broken. `answer` is what the cloud does then:

    a number    CONNACK with this return code of MQTT 3.1.1, and the end of the link
    close       the end of the link
    as 1        PUBACK, also to QoS 2: the message is taken
    lose        the message is acknowledged and lost
    reject      the message is neither acknowledged nor used, and a notice goes to the user's errors topic; ten in a
                minute lead to a ban
    silent      nothing: the packet is neither acknowledged nor used
    refuse      SUBACK with a failure for each filter
    grant 1     SUBACK with QoS 1
    throttle    the message is acknowledged and lost, and a notice goes to the user's throttle topic
    wait        the link is not read until the rate is right again
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from .wire import Packet, Type

if TYPE_CHECKING:
    from .cloud_broker import Link

#: Title of each page, and its date: the one it states, or else the day on which it was read.
SOURCES = {
    "aws-quotas": ("AWS General Reference: AWS IoT Core endpoints and quotas", "read 2026-11-28"),
    "aws-mqtt": ("AWS IoT Core Developer Guide: MQTT, differences from the specification", "read 2026-11-28"),
    "aws-policy": ("AWS IoT Core Developer Guide: AWS IoT Core policies", "read 2026-11-28"),
    "azure": ("Azure IoT: Communicate with an IoT hub using the MQTT protocol", "2023-06-27"),
    "azure-sas": ("Azure IoT Hub: Control access by using shared access signatures", "read 2026-11-28"),
    "thingsboard": ("ThingsBoard: MQTT Device API Reference", "read 2026-11-28"),
    "thingsboard-conf": ("ThingsBoard: configuration properties, transport.mqtt.netty", "read 2026-11-28"),
    "thingsboard-code": ("github.com/thingsboard/thingsboard: MqttTransportHandler.java", "read 2026-11-29"),
    "adafruit": ("Adafruit IO MQTT API", "read 2026-11-28"),
    "adafruit-bans": ("Adafruit IO MQTT API: Rate Limit Bans; Error Topics", "read 2026-11-29"),
    "adafruit-codes": ("Adafruit IO blog: Extending the MQTT protocol", "2016-06-28"),
    "hivemq": ("HiveMQ Community: Frequently Asked Questions, HiveMQ Cloud", "read 2026-11-28"),
    "hivemq-sni": ("github.com/LiamBindle/MQTT-C issue 186; github.com/redboltz/mqtt_cpp pull 960", "2024-01-14"),
    "emqx": ("EMQX Platform: Quotas and Limits, Serverless", "read 2026-11-28"),
}
CLOUDS = ("aws", "azure", "thingsboard", "adafruitio", "hivemq", "emqx")
KB = 1024
#: Seconds of silence after which a cloud ends a link, whatever keep-alive the client asked for.
LONGEST_SILENCE_S = {"aws": 1800, "azure": 1767}


@dataclass(frozen=True)
class Rule:
    """One rule. clouds: where it holds; packet: the type it looks at; text: what is wanted; source: of SOURCES."""

    clouds: str
    packet: Type
    text: str
    broken: Callable[[Packet, Link], bool]
    answer: int | str
    source: str


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _levels(topic: bytes | None) -> int:
    return (topic or b"").count(b"/") + 1


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


def _lacks_time(payload: bytes) -> bool:
    """Return True for {"ts": …, "values": …} whose ts is no number: ThingsBoard cannot convert it."""
    values = json.loads(payload) if _is_json(payload) else None
    return isinstance(values, dict) and {"ts", "values"} <= values.keys() and not isinstance(values["ts"], int)


def sas_token(resource: str, key: str, expires_s: int) -> str:
    """Return a shared access signature of Azure IoT Hub. key: in base64, as the portal shows it."""
    encoded = quote(resource, safe="")
    mac = hmac.new(base64.b64decode(key), f"{encoded}\n{expires_s}".encode(), hashlib.sha256).digest()
    return f"SharedAccessSignature sr={encoded}&sig={quote(base64.b64encode(mac), safe='')}&se={expires_s}"


def sas_expiry(token: bytes | None) -> int:
    """Return when a token ends (Unix seconds), or 0 if it says nothing."""
    found = re.search(rb"[&? ]se=(\d+)", token or b"")
    return int(found[1]) if found else 0


def _bad_sas(packet: Packet, link: Link) -> bool:
    resource = f"{link.cloud.user}/devices/{_text(packet.client_id)}"
    expires_s = sas_expiry(packet.password)
    given = parse_qs(_text(packet.password).removeprefix("SharedAccessSignature "))
    wanted = parse_qs(sas_token(resource, link.cloud.secret, expires_s).removeprefix("SharedAccessSignature "))
    return given != wanted or expires_s <= link.cloud.now()


def _bad_azure_user(packet: Packet, link: Link) -> bool:
    return not re.fullmatch(
        re.escape(f"{link.cloud.user}/{_text(packet.client_id)}/") + r"\?api-version=\d{4}-\d\d-\d\d(&.*)?",
        _text(packet.user_name),
    )


def _azure_topic(topic: bytes | None, link: Link) -> bool:
    name = _text(topic)
    # RFC 2396: no white space, and no slash in a property bag.
    return bool(
        re.fullmatch(re.escape(f"devices/{link.client_id}/messages/events/") + r"[^/\s]*", name)
        or name.startswith(("$iothub/twin/", "$iothub/methods/res/"))
    )


def _azure_filter(topic_filter: bytes, link: Link) -> bool:
    return _text(topic_filter) in (
        f"devices/{link.client_id}/messages/devicebound/#", "$iothub/twin/res/#",
        "$iothub/twin/PATCH/properties/desired/#", "$iothub/methods/POST/#",
    )  # fmt: skip


_ME = re.compile(
    r"v1/devices/me/(telemetry|attributes|attributes/request/\d+|rpc/(response|request)/\d+|claim)|v1/gateway/.+"
)
_ME_FILTERS = re.compile(
    r"v1/devices/me/(attributes|attributes/response/\+|rpc/request/\+|rpc/response/\+)|v1/gateway/.+|v2/fw/.+"
)


def _adafruit_topic(topic: bytes | None, link: Link) -> bool:
    user = re.escape(link.cloud.user)
    return bool(re.fullmatch(rf"{user}/(f|feeds|g|groups)/[a-z0-9.-]+(/(json|csv|get))?", _text(topic)))


def _adafruit_filter(topic_filter: bytes, link: Link) -> bool:
    user = re.escape(link.cloud.user)
    return bool(
        re.fullmatch(rf"{user}/((f|feeds|g|groups)/([a-z0-9.-]+|\+|#)(/(json|csv))?|errors|throttle)",
                     _text(topic_filter))
    )  # fmt: skip


def points(packet: Packet) -> int:
    """Return for how many data points of Adafruit IO a message counts: one for each feed of a group."""
    if re.search(rb"/(g|groups)/", packet.topic_name or b"") and _is_json(packet.payload):
        values = json.loads(packet.payload)
        if isinstance(values, dict) and isinstance(values.get("feeds"), dict):
            return max(1, len(values["feeds"]))
    return 1


def _any_filter(broken: Callable[[bytes, Link], bool]) -> Callable[[Packet, Link], bool]:
    return lambda packet, link: any(broken(one, link) for one, _ in packet.topic_filters)


def _qos_2(packet: Packet, _link: Link) -> bool:
    return packet.qos == 2 or any(qos & 3 == 2 for _, qos in packet.topic_filters)


def _lacks_name(_packet: Packet, link: Link) -> bool:
    return link.secure and not link.sni


def _larger(limit: int) -> Callable[[Packet, Link], bool]:
    return lambda packet, _link: len(packet.payload) > limit


def _wrong_login(packet: Packet, link: Link) -> bool:
    return (_text(packet.user_name), _text(packet.password)) != (link.cloud.user, link.cloud.secret)


# CONNACK: 1 version, 2 client id, 4 malformed or wrong name or password, 5 not authorized; 6 and 7 of Adafruit IO.
RULES = (
    Rule("azure adafruitio", Type.CONNECT, "MQTT 3.1.1", lambda p, _: p.protocol_level != 4, 1, "azure"),
    Rule("aws", Type.CONNECT, "a client id of 1 to 128 bytes", lambda p, _: not 0 < len(p.client_id) <= 128, 2,
         "aws-quotas"),
    Rule("aws", Type.CONNECT, "one CONNECT a second for a client id", lambda _, k: k.rate("connect", 1) > 1, "close",
         "aws-quotas"),
    Rule("aws", Type.CONNECT, "SNI: the name of the endpoint", _lacks_name, "close", "aws-mqtt"),
    Rule("aws", Type.CONNECT, "a will on topics that the policy allows",
         lambda p, k: p.will_topic is not None and not k.allowed(p.will_topic), "close", "aws-policy"),
    Rule("aws", Type.PUBLISH, "QoS 0 or 1: QoS 2 gets no answer", _qos_2, "silent", "aws-mqtt"),
    Rule("aws", Type.PUBLISH, "payloads of at most 128 KB", _larger(128 * KB), "close", "aws-quotas"),
    Rule("aws", Type.PUBLISH, "topics of at most 256 bytes and 8 levels",
         lambda p, _: len(p.topic_name or b"") > 256 or _levels(p.topic_name) > 8, "close", "aws-quotas"),
    Rule("aws", Type.PUBLISH, "topics that the policy allows", lambda p, k: not k.allowed(p.topic_name), "close",
         "aws-policy"),
    Rule("aws", Type.PUBLISH, "at most 100 messages a second on a connection", lambda _, k: k.rate("publish", 1) > 100,
         "silent", "aws-quotas"),
    Rule("aws", Type.SUBSCRIBE, "QoS 0 or 1: QoS 2 gets no answer", _qos_2, "silent", "aws-mqtt"),
    Rule("aws", Type.SUBSCRIBE, "at most 8 filters a SUBSCRIBE", lambda p, _: len(p.topic_filters) > 8, "close",
         "aws-quotas"),
    Rule("aws", Type.SUBSCRIBE, "at most 50 subscriptions on a connection", lambda p, k: k.subscribed(p) > 50, "refuse",
         "aws-quotas"),
    Rule("aws", Type.SUBSCRIBE, "filters that the policy allows", _any_filter(lambda f, k: not k.allowed(f)), "refuse",
         "aws-policy"),
    Rule("azure", Type.CONNECT, "the user name HUB/DEVICE/?api-version=DATE", _bad_azure_user, 4, "azure"),
    Rule("azure", Type.CONNECT, "a token signed with the device's key, and not expired", _bad_sas, 5, "azure-sas"),
    Rule("azure", Type.CONNECT, "a will on devices/ID/messages/events/",
         lambda p, k: p.will_topic is not None and not _azure_topic(p.will_topic, k), "close", "azure"),
    Rule("azure", Type.PUBLISH, "QoS 0 or 1", _qos_2, "close", "azure"),
    Rule("azure", Type.PUBLISH, "messages of at most 256 KB", _larger(256 * KB), "close", "azure"),
    Rule("azure", Type.PUBLISH, "devices/ID/messages/events/BAG, and twin and method topics",
         lambda p, k: not _azure_topic(p.topic_name, k), "close", "azure"),
    Rule("azure", Type.SUBSCRIBE, "the documented filters", _any_filter(lambda f, k: not _azure_filter(f, k)), "refuse",
         "azure"),
    Rule("azure", Type.SUBSCRIBE, "at most 5 subscriptions", lambda p, k: k.subscribed(p) > 5, "refuse", "azure"),
    Rule("azure", Type.SUBSCRIBE, "QoS 1 is granted for QoS 2", _qos_2, "grant 1", "azure"),
    Rule("thingsboard", Type.CONNECT, "a user name", lambda p, _: not p.user_name, 4, "thingsboard"),
    Rule("thingsboard", Type.CONNECT, "the access token as user name",
         lambda p, k: _text(p.user_name) != k.cloud.secret, 5, "thingsboard"),
    Rule("thingsboard", Type.PUBLISH, "QoS 0 or 1", _qos_2, "as 1", "thingsboard-code"),
    Rule("thingsboard", Type.PUBLISH, "payloads of at most 64 KB", _larger(64 * KB), "close", "thingsboard-conf"),
    Rule("thingsboard", Type.PUBLISH, "the documented topics", lambda p, _: not _ME.fullmatch(_text(p.topic_name)),
         "lose", "thingsboard-code"),
    Rule("thingsboard", Type.PUBLISH, "JSON", lambda p, _: not _is_json(p.payload), "close", "thingsboard-code"),
    Rule("thingsboard", Type.PUBLISH, "a number as ts", lambda p, _: _lacks_time(p.payload), "close",
         "thingsboard-code"),
    Rule("thingsboard", Type.SUBSCRIBE, "the documented filters",
         _any_filter(lambda f, _: not _ME_FILTERS.fullmatch(_text(f))), "refuse", "thingsboard"),
    Rule("adafruitio", Type.CONNECT, "no ban: 30 s without a message after the rate was exceeded too often",
         lambda _, k: k.cloud.banned_until > k.cloud.now(), 7, "adafruit-codes"),
    Rule("adafruitio", Type.CONNECT, "at most 20 connections a minute", lambda _, k: k.rate("connect", 60) > 20, 6,
         "adafruit-bans"),
    Rule("adafruitio", Type.CONNECT, "user name and key", _wrong_login, 4, "adafruit"),
    Rule("adafruitio", Type.PUBLISH, "QoS 0 or 1", _qos_2, "reject", "adafruit-bans"),
    Rule("adafruitio", Type.PUBLISH, "feeds and groups of the user", lambda p, k: not _adafruit_topic(p.topic_name, k),
         "reject", "adafruit-bans"),
    Rule("adafruitio", Type.PUBLISH, "at most 30 data points a minute",
         lambda p, k: k.rate("points", 60, points(p)) > 30, "throttle", "adafruit"),
    Rule("adafruitio", Type.SUBSCRIBE, "feeds, groups, errors and throttle of the user",
         _any_filter(lambda f, k: not _adafruit_filter(f, k)), "refuse", "adafruit"),
    Rule("hivemq", Type.CONNECT, "SNI: the name of the cluster", _lacks_name, 5, "hivemq-sni"),
    Rule("hivemq emqx", Type.CONNECT, "user name and password", _wrong_login, 5, "hivemq"),
    Rule("emqx", Type.CONNECT, "a client id of at most 1024 bytes", lambda p, _: len(p.client_id) > 1024, 2, "emqx"),
    Rule("emqx", Type.PUBLISH, "messages of at most 1 MB", _larger(KB * KB), "close", "emqx"),
    Rule("emqx", Type.PUBLISH, "at most 10 messages a second", lambda _, k: k.rate("publish", 1) > 10, "wait", "emqx"),
    Rule("emqx", Type.SUBSCRIBE, "at most 10 subscriptions", lambda p, k: k.subscribed(p) > 10, "refuse", "emqx"),
    Rule("emqx", Type.SUBSCRIBE, "filters of at most 10 levels", _any_filter(lambda f, _: _levels(f) > 10), "refuse",
         "emqx"),
)  # fmt: skip


def rules_of(cloud: str) -> list[Rule]:
    """Return the rules of one cloud, in the order in which they are looked at. Raises ValueError."""
    if cloud not in CLOUDS:
        raise ValueError(f"{cloud!r} is no cloud that is played here: {', '.join(CLOUDS)}")
    return [rule for rule in RULES if cloud in rule.clouds.split()]
