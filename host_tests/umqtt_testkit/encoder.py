"""Encodes MQTT packets for tests, written apart from umqtt_robust so that each checks the other.

Runs under CPython and MicroPython. The functions encode what they are given, even if the result is malformed on
purpose. Names are the specification's; topics, filters, client ids and payloads are bytes.
"""

# Control packet types [MQTT 3.1.1, table 2.1].
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14
AUTH = 15

# Properties of MQTT 5 [its table 2-4]: identifier, and number of bytes, or another type of value.
PROPERTIES = {
    "payload_format_indicator": (1, 1),
    "message_expiry_interval": (2, 4),
    "content_type": (3, "text"),
    "response_topic": (8, "text"),
    "correlation_data": (9, "text"),
    "subscription_identifier": (11, "variable"),
    "session_expiry_interval": (17, 4),
    "assigned_client_identifier": (18, "text"),
    "server_keep_alive": (19, 2),
    "authentication_method": (21, "text"),
    "authentication_data": (22, "text"),
    "request_problem_information": (23, 1),
    "will_delay_interval": (24, 4),
    "request_response_information": (25, 1),
    "response_information": (26, "text"),
    "server_reference": (28, "text"),
    "reason_string": (31, "text"),
    "receive_maximum": (33, 2),
    "topic_alias_maximum": (34, 2),
    "topic_alias": (35, 2),
    "maximum_qos": (36, 1),
    "retain_available": (37, 1),
    "user_property": (38, "pair"),
    "maximum_packet_size": (39, 4),
    "wildcard_subscription_available": (40, 1),
    "subscription_identifier_available": (41, 1),
    "shared_subscription_available": (42, 1),
}

_FLAGS_0010 = (PUBREL, SUBSCRIBE, UNSUBSCRIBE)


def first_byte(kind):
    """Return the first byte of a packet of this type, except PUBLISH, with the flags of [MQTT-2.2.2-1]."""
    return kind << 4 | (2 if kind in _FLAGS_0010 else 0)


def encode(first, body=b""):
    """Return a packet: its first byte, the remaining length, the body."""
    return bytes((first,)) + variable(len(body)) + body


def variable(number):
    """Encode a variable byte integer."""
    encoded = b""
    while number > 127:
        encoded += bytes((number & 127 | 128,))
        number >>= 7
    return encoded + bytes((number,))


def properties(**values):
    """Encode properties of MQTT 5 with their length before them; a list stands for several properties of one name."""
    encoded = b""
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            encoded += one_property(name, each)
    return variable(len(encoded)) + encoded


def one_property(name, value):
    identifier, kind = PROPERTIES[name]
    if kind == "text":
        encoded = string(value)
    elif kind == "pair":
        encoded = string(value[0]) + string(value[1])
    elif kind == "variable":
        encoded = variable(value)
    else:
        encoded = value.to_bytes(kind, "big")
    return bytes((identifier,)) + encoded


def parse_properties(data, at):
    """Decode properties; return ({name: value}, index behind them).

    User properties are a list, and so is every property that occurs more than once.
    """
    length, at = parse_variable(data, at)
    end = at + length
    found: dict = {}
    while at < end:
        name, kind = next((name, kind) for name, (identifier, kind) in PROPERTIES.items() if identifier == data[at])
        at += 1
        if kind == "variable":
            value, at = parse_variable(data, at)
        elif kind == "text":
            value, at = parse_string(data, at)
        elif kind == "pair":
            first, at = parse_string(data, at)
            second, at = parse_string(data, at)
            value = (first, second)
        else:
            value, at = int.from_bytes(data[at : at + kind], "big"), at + kind
        if name == "user_property":
            found.setdefault(name, []).append(value)
        elif name in found:
            known = found[name]
            found[name] = (known if isinstance(known, list) else [known]) + [value]
        else:
            found[name] = value
    return found, end


def parse_variable(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def parse_string(data, at):
    end = at + 2 + (data[at] << 8 | data[at + 1])
    return data[at + 2 : end], end


def uint16(number):
    return bytes((number >> 8, number & 255))


def string(text):
    """Encode a field with its length before it."""
    return uint16(len(text)) + text


def connect(
    client_id,
    *,
    clean_session=True,
    keep_alive=0,
    will=None,
    user_name=None,
    password=None,
    level=4,
    name=None,
    properties=None,
    will_properties=b"\0",
):
    """Encode a CONNECT.

    will: (topic name, payload, QoS, retain). level: 3 to 5; with its top bit set, a bridge's. properties: of MQTT 5;
    with them the level is 5.
    """
    flags = 2 if clean_session else 0
    fields = string(client_id)
    if properties is not None:
        level = 5
        fields = properties + fields
    if will is not None:
        topic_name, payload, qos, retain = will
        flags |= 4 | qos << 3 | (32 if retain else 0)
        if properties is not None:
            fields += will_properties
        fields += string(topic_name) + string(payload)
    if user_name is not None:
        flags |= 128
        fields += string(user_name)
    if password is not None:
        flags |= 64
        fields += string(password)
    if name is None:
        name = b"MQIsdp" if level & 127 == 3 else b"MQTT"
    return encode(16, string(name) + bytes((level, flags)) + uint16(keep_alive) + fields)


def connack(session_present=False, return_code=0, properties=b""):
    """Encode a CONNACK. properties: b"" before MQTT 5."""
    return encode(32, bytes((1 if session_present else 0, return_code)) + properties)


def publish(topic_name, payload, qos=0, packet_id=0, *, retain=False, dup=False, properties=b""):
    """Encode a PUBLISH. properties: b"" before MQTT 5."""
    first = 48 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return encode(first, string(topic_name) + (uint16(packet_id) if qos else b"") + properties + payload)


def acknowledgement(kind, packet_id, reason=b""):
    """Encode a PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK. reason: of MQTT 5, reason code and properties."""
    return encode(first_byte(kind), uint16(packet_id) + reason)


def subscribe(packet_id, *requests, properties=b""):
    """Encode a SUBSCRIBE for (topic filter, QoS or options) pairs. properties: b"" before MQTT 5."""
    pairs = b"".join([string(each) + bytes((qos,)) for each, qos in requests])
    return encode(0x82, uint16(packet_id) + properties + pairs)


def suback(packet_id, *return_codes):
    return encode(0x90, uint16(packet_id) + bytes(return_codes))


def unsubscribe(packet_id, *topic_filters, properties=b""):
    return encode(0xA2, uint16(packet_id) + properties + b"".join([string(each) for each in topic_filters]))


def pingreq():
    return encode(0xC0)


def pingresp():
    return encode(0xD0)


def disconnect(reason=b""):
    """Encode a DISCONNECT. reason: of MQTT 5, reason code and properties."""
    return encode(0xE0, reason)


def auth(reason_code, **values):
    """Encode an AUTH of MQTT 5. values: its properties."""
    return encode(0xF0, bytes((reason_code,)) + properties(**values))


def split_packets(data):
    """Split a byte stream into packets; return ([(first byte, body)], rest)."""
    packets = []
    start = 0
    while start + 1 < len(data):
        length = shift = 0
        at = start + 1
        while at < len(data):
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        else:
            break
        if at + length > len(data):
            break
        packets.append((data[start], bytes(data[at : at + length])))
        start = at + length
    return packets, bytes(data[start:])


def parse_publish(first, body):
    """Return (topic name, packet id, payload) of a PUBLISH; packet id 0 at QoS 0."""
    end = 2 + (body[0] << 8 | body[1])
    if not first & 6:
        return body[2:end], 0, body[end:]
    return body[2:end], body[end] << 8 | body[end + 1], body[end + 2 :]
