"""Return codes of MQTT 3.1.1 and reason codes of MQTT 5 in words, for messages to people."""

CONNACK_REFUSALS = {
    1: "protocol level not supported",
    2: "client_id rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
"""Return codes of CONNACK in MQTT 3.1.1 [3.2.2.3]."""

UNSUPPORTED_VERSION = 0x84

PASSING = frozenset({3, 0x88, 0x89, 0x97, 0x9C, 0x9D, 0x9F})
"""Refusals of CONNECT that end by themselves, of both versions: unavailable, busy, quota, another server, rate."""

REASONS = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "protocol version not supported",
    0x85: "client_id rejected",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter not valid",
    0x90: "topic name not valid",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format not valid",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA2: "wildcard subscriptions not supported",
}
"""Reason codes of MQTT 5 [2.4] from 0x80 on."""


def describe(code: int, reason_string: bytes = b"", server_reference: bytes = b"") -> str:
    """Return a return code or reason code in words, with what the broker says of it if it says something."""
    words = CONNACK_REFUSALS.get(code) or REASONS.get(code, "unknown reason")
    told = ", ".join(text.decode(errors="replace") for text in (reason_string, server_reference) if text)
    number = f"0x{code:02x}" if code >= 0x80 else f"{code}"
    return f"{words}: {told} ({number})" if told else f"{words} ({number})"
