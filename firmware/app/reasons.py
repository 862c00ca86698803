"""Explains why there is no network or no link to the broker, and what to do. Loaded for one line of the log.

The firmware recognises errors by their class names, because most modules that define them are loaded only when
needed.
"""

import errno

_REFUSED = {
    1: "the broker does not speak MQTT 3.1.1",
    2: "the broker refuses the device id: give another device_id",
    3: "the broker cannot serve now: it is asked again",
    4: "wrong user name or password: correct them with umqtt provision",
    # mosquitto answers so to wrong passwords too
    5: "wrong user name or password, or no right to connect: correct them with umqtt provision",
    6: "the broker throttles: too many connections in a minute",
    7: "the broker has banned this user for a while: it was sent too much",
}
_TEXTS = {
    "closed by the broker": "it closed the connection; if it always does: right port, and mqtt:// or mqtts:// right?",
    "connect_timeout": "no answer: is the address in brokers right, and does no firewall stop it?",
    "ack_timeout": "the broker has stopped answering",
    "ping_timeout": "the broker has stopped answering",
    "id in use elsewhere, or topic forbidden?": (
        "the broker ends each link at once: has another board this device_id, or has this user no right to its topics?"
    ),
}
# Errors of getaddrinfo(): -2 on rp2's lwIP and unix, -200 and below on esp32; no other errors lie in between.
_LOWEST_NAME_ERROR = -255

# Why an attempt failed, by constants of module network, whose numbers differ: 201 … on esp32, -3 … on rp2.
_WIFI = (
    ("STAT_WRONG_PASSWORD", "wrong password: correct it with umqtt provision"),
    ("STAT_NO_AP_FOUND", "no such network in reach: is its name right, is it on, and at 2.4 GHz?"),
    ("STAT_NO_AP_FOUND_IN_AUTHMODE_THRESHOLD", "its encryption is too weak"),
    ("STAT_NO_AP_FOUND_W_COMPATIBLE_SECURITY", "its encryption is not supported"),
    ("STAT_HANDSHAKE_TIMEOUT", "no answer in the handshake: wrong password?"),
    ("STAT_CONNECT_FAIL", "refused"),
)
# esp32 passes the reasons of ESP-IDF through; most access points answer a wrong password with this one.
_WIFI_REASON_4WAY_HANDSHAKE_TIMEOUT = 15


def of(error):
    """Return one line about an exception of Client.on_error or on_disconnect, or a RuntimeError; without a secret."""
    kind = error.__class__.__name__
    first = error.args[0] if error.args else None
    if kind == "Refused" and first == "connect":
        text = _REFUSED.get(error.args[1])
    elif kind == "Refused":
        text = "the broker refuses the subscription: without rights to it no command arrives"
    elif kind == "StoreError":
        return "outbox: %s" % first
    elif kind == "RuntimeError":
        return first or repr(error)
    elif kind == "ClockNotSet":
        text = "TLS has to wait until the time is known: does ntp_host answer?"
    elif kind == "CertificateRefused":
        text = _certificate(str(first))
    elif isinstance(error, OSError):
        text = _system(first)
    else:
        text = _TEXTS.get(first)
        if text and len(error.args) > 1 and error.args[1]:
            text += " The last topic was %s." % error.args[1].decode()
    return "broker: %s (%r)" % (text, error) if text else "broker: %r" % error


def _certificate(said):
    # Recognised by the words of mbedTLS, which all ports pass on.
    if "Common Name" in said or "match" in said:
        return "its certificate is for another name: put the name that it has into brokers"
    if "expired" in said or "future" in said:
        return "its certificate is not valid today: renew it, or see whether the board's time is right"
    return "its certificate is not signed by tls.ca: put the right authority there with umqtt provision"


def _system(number):
    if not isinstance(number, int) or _LOWEST_NAME_ERROR <= number < 0:
        return "its name cannot be looked up: is it spelt right in brokers, and does the network's DNS answer?"
    if number == errno.ECONNREFUSED:
        return "nobody listens at the address in brokers: does the broker run, is the port right?"
    if number == -0x7780:  # mbedTLS: a fatal alert
        return (
            "it ended the TLS handshake: it must accept TLS 1.2, show an RSA or ECDSA certificate (no Ed25519), and "
            "take the certificate in tls.cert if it wants one"
        )
    # ENETUNREACH of lwIP, and ENETUNREACH and EHOSTUNREACH of an ESP32: boards have no names for these numbers.
    if number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, 101, 114, 118):
        return _TEXTS["connect_timeout"]
    return None


def wifi(network, status):
    """Return what a WLAN.status() of a failed attempt means. network: the module. A text is returned unchanged."""
    if isinstance(status, str):
        return status
    if status == _WIFI_REASON_4WAY_HANDSHAKE_TIMEOUT:
        return _WIFI[0][1]
    for name, text in _WIFI:
        if getattr(network, name, None) == status:
            return text
    return "failed, status %d" % status
