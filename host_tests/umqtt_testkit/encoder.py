"""Encodes MQTT packets for tests, written apart from umqtt_robust so that each checks the other.

Runs under CPython and MicroPython. The functions do what they are told, also where the result is wrong on purpose.
Names are the specification's; topics, filters, client ids and payloads are bytes.
"""

# Control packet types [MQTT 3.1.1, table 2.1].
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14

_FLAGS_0010 = (PUBREL, SUBSCRIBE, UNSUBSCRIBE)


def first_byte(kind):
    """The first byte of a packet of this type, except PUBLISH, with the flags that [MQTT-2.2.2-1] wants."""
    return kind << 4 | (2 if kind in _FLAGS_0010 else 0)


def encode(first, body=b""):
    """A packet: its first byte, the remaining length, the body."""
    length, left = b"", len(body)
    while left > 127:
        length += bytes((left & 127 | 128,))
        left >>= 7
    return bytes((first,)) + length + bytes((left,)) + body


def uint16(number):
    return bytes((number >> 8, number & 255))


def string(text):
    """A field with its length before it."""
    return uint16(len(text)) + text


def connect(
    client_id, *, clean_session=True, keep_alive=0, will=None, user_name=None, password=None, level=4, name=None
):
    """A CONNECT. will: (topic name, payload, QoS, retain). level: 4 or 3; with its top bit set, a bridge's."""
    flags = 2 if clean_session else 0
    fields = string(client_id)
    if will is not None:
        topic_name, payload, qos, retain = will
        flags |= 4 | qos << 3 | (32 if retain else 0)
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


def connack(session_present=False, return_code=0):
    return encode(32, bytes((1 if session_present else 0, return_code)))


def publish(topic_name, payload, qos=0, packet_id=0, *, retain=False, dup=False):
    first = 48 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return encode(first, string(topic_name) + (uint16(packet_id) if qos else b"") + payload)


def acknowledgement(kind, packet_id):
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK."""
    return encode(first_byte(kind), uint16(packet_id))


def subscribe(packet_id, *requests):
    """A SUBSCRIBE for (topic filter, QoS) pairs."""
    return encode(0x82, uint16(packet_id) + b"".join([string(each) + bytes((qos,)) for each, qos in requests]))


def suback(packet_id, *return_codes):
    return encode(0x90, uint16(packet_id) + bytes(return_codes))


def unsubscribe(packet_id, *topic_filters):
    return encode(0xA2, uint16(packet_id) + b"".join([string(each) for each in topic_filters]))


def pingreq():
    return encode(0xC0)


def pingresp():
    return encode(0xD0)


def disconnect():
    return encode(0xE0)


def split_packets(data):
    """([(first byte, body)], rest) of a byte stream."""
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
    """(topic name, packet id, payload) of a PUBLISH; packet id 0 at QoS 0."""
    end = 2 + (body[0] << 8 | body[1])
    if not first & 6:
        return body[2:end], 0, body[end:]
    return body[2:end], body[end] << 8 | body[end + 1], body[end + 2 :]
