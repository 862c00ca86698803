"""Checks the arguments that the client does not recognise as valid at a glance; loaded only for those."""

from ._platform import load
from .errors import InvalidArgument
from .packets import string
from .session import checked

# Names of options in other clients.
_MEANT = {
    "clean": "clean_session",
    "cleansession": "clean_session",
    "keepalive": "keep_alive",
    "last_will": "will",
    "pswd": "password",
    "server": "servers",
    "ssl": "transports",
    "user": "username",
}


def bad_option(name):
    """Returns the error for an option that does not exist, or has a bad value."""
    meant = _MEANT.get(name)
    return InvalidArgument("bad option or value: " + name + ("; did you mean %s?" % meant if meant else ""))


def connect(session, keep_alive, store):
    """Checks the arguments of a client, and encodes user name and password. keep_alive: s. Raises InvalidArgument."""
    username = session.username
    password = session.password
    if not isinstance(keep_alive, int) or not 0 <= keep_alive <= 65535:
        raise InvalidArgument("keep_alive must be 0 to 65535 seconds")
    if not 0 <= session.ping_after <= keep_alive * 1000:
        raise InvalidArgument("ping_after must be at most keep_alive")
    if not session.client_id and not session.clean_session or password is not None and username is None:
        # [MQTT-3.1.3-7], [MQTT-3.1.2-22]
        raise InvalidArgument("an empty client_id needs clean_session, and a password a username")
    if not session.window:
        raise InvalidArgument("window must be at least 1 message")
    if not hasattr(store, "slots"):
        raise InvalidArgument("store must be a store, such as FlashStore(folder)")
    will = session.will
    if will is not None:
        if type(will) is not tuple or len(will) != 3 or type(will[0]) is not int or type(will[1]) is not bytes:
            raise InvalidArgument("will must be a Will")
        if will[2] and session.protocol == 4:
            raise InvalidArgument("properties of a will need protocol=5")
    if username is not None:
        username = load("topics").check_utf8(username, "username")
    if isinstance(password, str):
        password = password.encode()
    if password is not None and (not isinstance(password, bytes) or len(password) > 65535):
        raise InvalidArgument("password must be bytes or str of at most 65535 bytes")
    session.username = username
    session.password = password


def will(topic, payload, qos, retain, properties):
    """Returns a will as the client keeps it: its flags in CONNECT, its topic and payload encoded, its properties.

    Raises InvalidArgument.
    """
    payload = payload.encode() if isinstance(payload, str) else copy(payload)
    if isinstance(qos, bool) or qos not in (0, 1, 2) or len(payload) > 65535:
        raise InvalidArgument("a will has qos 0, 1 or 2 and a payload of at most 65535 bytes")
    topic = checked(topic, "check_topic_name")
    return 4 | qos << 3 | (32 if retain else 0), string(topic) + string(payload), properties


def copy(payload):
    """Returns a payload as bytes, because its buffer may be reused while the message waits.

    Raises InvalidArgument unless it is bytes, bytearray, memoryview or an array.
    """
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise InvalidArgument("payload must be bytes, str, bytearray, memoryview or array")


def publish(size, qos, expires_in=None):
    """Raises InvalidArgument unless a message may have that size (of topic and payload), QoS and lifetime (ms)."""
    # A bool is the `retain` of a program for mqtt_as, which has it before the QoS. 268435451: 2.2.3.
    if isinstance(qos, bool) or qos not in (0, 1, 2) or size > 268435451:
        raise InvalidArgument("qos must be 0, 1 or 2, and the packet at most 268435455 bytes")
    if expires_in is not None and (type(expires_in) is not int or expires_in <= 0):
        raise InvalidArgument("expires_in must be a positive number of ms")
