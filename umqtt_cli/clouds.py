"""The clouds that one setting reaches: what a board, a client and a collector are told for each.

`umqtt provision --cloud`, `umqtt collect --cloud` and docs/clouds.md read this table. What each cloud refuses is in
umqtt_testkit.cloud_rules, with its sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_AZURE = "devices/{device_id}/messages/events/leaf={leaf}&$.ct=application%2Fjson&$.ce=utf-8"
_FEED = "{username}/feeds/{device_id}.{leaf}"
_ME = "v1/devices/me/"


@dataclass(frozen=True)
class Cloud:
    """One cloud.

    :ivar title: its name, as users know it.
    :ivar host: what its address looks like.
    :ivar settings: keys of a board's settings.json; topics None: fleet/{device_id}/….
    :ivar username: form of the user name, with {host}, or the question to ask for it; "" for none.
    :ivar secret: what the board proves itself with: "password", "sas_key", "token" (sent as user name), "certificate".
    :ivar secret_words: how the cloud calls it.
    :ivar scheme: "mqtts", or "mqtt" where a broker at home is usual.
    :ivar ca: where the authority's certificate comes from.
    :ivar filters: what a collector subscribes to; empty: it cannot collect there, and `refusal` says why.
    :ivar refusal: why a collector cannot, and what to do.
    :ivar alpn: ALPN protocols on port 443, for a computer.
    :ivar keep_alive: least and most seconds of keep-alive that make sense for a collector.
    :ivar most_filters: the most filters of one client; 0: no limit is known.
    """

    title: str
    host: str
    username: str = "user name"
    secret: str = "password"
    secret_words: str = "password"
    scheme: str = "mqtts"
    ca: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    filters: tuple[str, ...] = ("fleet/+/telemetry", "fleet/+/status", "fleet/+/log")
    refusal: str = ""
    alpn: tuple[str, ...] = ()
    keep_alive: tuple[int, int] = (0, 65535)
    most_filters: int = 0


CLOUDS: dict[str, Cloud] = {
    "aws": Cloud(
        "AWS IoT Core", "PREFIX-ats.iot.REGION.amazonaws.com", username="", secret="certificate",
        secret_words="the thing's certificate", ca="Amazon Root CA 1: AmazonRootCA1.pem",
        alpn=("x-amzn-mqtt-ca",), keep_alive=(30, 1200), most_filters=50, settings={"telemetry_qos": 1},
    ),
    "azure": Cloud(
        "Azure IoT Hub", "HUB.azure-devices.net", username="{host}/{device_id}/?api-version=2021-04-12",
        secret="sas_key", secret_words="primary key of the device", ca="DigiCert Global Root G2",
        settings={
            "telemetry_qos": 1,
            "topics": {
                **dict.fromkeys(("telemetry", "status", "log", "reply", "reported"), _AZURE),
                "cmd": "devices/{device_id}/messages/devicebound/#",
            },
        },
        filters=(),
        refusal=(
            "its built-in endpoint speaks AMQP and the protocol of Kafka, no MQTT: read it with Spark's Kafka source, "
            "or have the hub route the messages to Event Grid's MQTT broker and collect there with --cloud generic"
        ),
    ),
    "thingsboard": Cloud(
        "ThingsBoard", "mqtt.thingsboard.cloud", username="", secret="token", secret_words="access token of the device",
        ca="ISRG Root X1 (Let's Encrypt)",
        settings={
            "telemetry_qos": 1,
            "topics": {
                "telemetry": [_ME + "telemetry", {"ts": "{ts}", "values": "{m}"}, "{m}"],
                "status": _ME + "attributes",
                "log": [_ME + "telemetry", {"log": "{}"}],
                "reported": _ME + "attributes",
                "cmd": [_ME + "rpc/request/+", {"id": "{+}", "cmd": "{method}", "args": "{params}"}],
                "reply": [_ME + "rpc/response/{id}", "{}"],
                "desired": [_ME + "attributes", "{desired}"],
            },
        },
        filters=(),
        refusal="a device gets its own commands alone there: have a rule chain publish to a broker of yours",
    ),
    "adafruitio": Cloud(
        "Adafruit IO", "io.adafruit.com", username="Adafruit IO user name", secret_words="Adafruit IO key",
        ca="DigiCert Global Root G2",
        settings={
            "telemetry_qos": 1,
            "per_minute": 30,
            "topics": {
                "telemetry": ["{username}/groups/{device_id}", {"feeds": "{m}"}],
                **dict.fromkeys(("status", "log", "reply", "reported", "cmd"), _FEED),
                **dict.fromkeys(("throttle", "errors"), "{username}/{leaf}"),
            },
        },
        filters=("{username}/feeds/+",),
    ),
    "hivemq": Cloud("HiveMQ Cloud", "ID.s1.eu.hivemq.cloud", ca="ISRG Root X1 (Let's Encrypt)"),
    "emqx": Cloud(
        "EMQX Serverless", "ID.ala.REGION.emqxsl.com", ca="DigiCert Global Root CA, emqxsl-ca.crt", most_filters=10,
    ),
    "homeassistant": Cloud(
        "Home Assistant's Mosquitto add-on", "homeassistant.local", scheme="mqtt", settings={"home_assistant": True},
    ),
    "generic": Cloud("any MQTT broker", "broker.example"),
}  # fmt: skip
