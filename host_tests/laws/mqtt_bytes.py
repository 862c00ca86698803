"""MQTT 3.1.1 on the wire, written a second time for the laws: nothing here comes from the library under test."""

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14


def encode(head, body=b""):
    """A control packet with the given first byte."""
    n = len(body)
    length = b""
    while n > 127:
        length += bytes((n & 127 | 128,))
        n >>= 7
    return bytes((head,)) + length + bytes((n,)) + body


def string(text):
    return uint16(len(text)) + text


def uint16(number):
    return bytes((number >> 8, number & 255))


def publish(topic, payload, qos=0, packet_id=0, retain=False, dup=False):
    head = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return encode(head, string(topic) + (uint16(packet_id) if qos else b"") + payload)


def acknowledgement(kind, packet_id):
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK."""
    return encode(kind << 4 | (2 if kind == PUBREL else 0), uint16(packet_id))


def parse_publish(head, body):
    """(topic, packet id, payload)."""
    n = body[0] << 8 | body[1]
    if not head & 6:
        return body[2 : 2 + n], 0, body[2 + n :]
    return body[2 : 2 + n], body[2 + n] << 8 | body[3 + n], body[4 + n :]


def split_packets(data):
    """([(first byte, body)], rest) of a byte stream."""
    packets = []
    i = 0
    while i + 1 < len(data):
        length = shift = 0
        j = i + 1
        while j < len(data):
            length |= (data[j] & 127) << shift
            shift += 7
            j += 1
            if data[j - 1] < 128:
                break
        else:
            break
        if j + length > len(data):
            break
        packets.append((data[i], bytes(data[j : j + length])))
        i = j + length
    return packets, bytes(data[i:])


def selects(topic_filter, topic):
    """Whether a filter without `+` selects a topic."""
    if topic_filter[-1:] == b"#":
        return topic.startswith(topic_filter[:-1]) or topic == topic_filter[:-2]
    return topic_filter == topic
