"""Packets that a broken or hostile broker might send, and an independent opinion on what they mean."""

from umqtt_testkit.encoder import PROPERTIES, encode, properties, publish, string, uint16
from world import version

from umqtt_robust import Client
from umqtt_robust.errors import MQTTError

RX = 128


def connack(session_present=0):
    """Return the CONNACK that begins every stream."""
    return encode(0x20, bytes((session_present, 0)) + (b"\0" if version[0] == 5 else b""))


class Peer:
    """A transport that answers CONNECT with the stream, in pieces, and then with silence or the end of the stream."""

    def __init__(self, pieces, fin):
        self.pieces = list(pieces)
        self.fin = fin
        self.written = b""
        self.alive = True
        self.socket = self

    def ready(self):
        return True

    def write(self, buf, offset, size):
        self.written += bytes(buf[offset : offset + size])
        return size

    def read(self, buf, offset):
        if not self.written:
            return None
        if not self.pieces:
            return 0 if self.fin else None
        n = min(len(buf) - offset, len(self.pieces[0]))
        buf[offset : offset + n] = self.pieces[0][:n]
        self.pieces[0] = self.pieces[0][n:]
        if not self.pieces[0]:
            self.pieces.pop(0)
        return n

    def close(self):
        self.alive = False


class Eater:
    """A client that is fed streams, and the messages and errors that result."""

    def __init__(self, **options):
        self.now = 0
        self.peer = None
        options.setdefault("clean_session", False)
        options.setdefault("rx_size", RX)
        options.setdefault("protocol", version[0])
        self.client = client = Client(
            b"c", "mqtt://h", keep_alive=0, ticks=lambda: self.now, random=lambda n: 0,
            transports={"mqtt": self._make}, **options
        )  # fmt: skip
        client.on_message = self._message
        client.on_error = self._error
        client.on_disconnect = self._error

    def _make(self, host, port, path):
        return self.peer

    def _message(self, topic, payload):
        self.messages.append((topic, payload))

    def _error(self, error):
        assert isinstance(error, (MQTTError, OSError)), repr(error)
        self.errors.append(error)

    def eat(self, pieces, fin=False):
        """Connect to a peer that sends the stream; return whether the link is up at the end."""
        self.messages = []
        self.errors = []
        if self.client.transport:
            self.peer.alive = False
            self.peer.read = _broken
            self.client.tick()
            self.errors = []
        self.peer = peer = Peer(pieces, fin)
        for _ in range(200 + sum([len(piece) for piece in pieces])):
            self.now = (self.now + 200000) & 0x3FFFFFFF if self.client.transport is None else self.now
            self.client.tick()
            if not peer.alive:
                return False
            if not peer.pieces:
                self.client.tick()
                self.client.tick()
                return peer.alive
        raise AssertionError("hung with %r left" % peer.pieces)


def _broken(buf, offset):
    raise OSError(104)


# A second opinion

OK, BAD, MORE, ODD = "ok", "bad", "more", "odd"


def verdict(data, rx=RX):
    """Return (messages, acknowledgements, state) that MQTT requires of a client without requests of its own.

    state: OK; BAD: the link must be closed; MORE: the last packet is incomplete, and closing early is allowed;
    ODD: a topic is longer than the buffer.
    """
    messages = []
    answers = []
    stored = {}
    i = 0
    while i < len(data):
        head = data[i]
        length = shift = 0
        j = i + 1
        while True:
            if j == len(data):
                return messages, answers, MORE
            length |= (data[j] & 127) << shift
            shift += 7
            j += 1
            if data[j - 1] < 128:
                break
            if shift > 21:
                return messages, answers, BAD
        end = j + length
        large = end - i > rx
        kind = head >> 4
        if kind not in (3, 4, 5, 6, 7, 9, 11, 13) and not (kind == 14 and version[0] == 5):
            return messages, answers, BAD if end <= len(data) or large else MORE
        if end > len(data):
            return messages, answers, MORE
        body = data[j:end]
        i = end
        if kind != 3:
            if head & 15 != (2 if kind == 6 else 0):
                return messages, answers, BAD
            if version[0] == 5:
                if kind == 14 or not good_body(kind, body):  # DISCONNECT closes the link, whatever its content
                    return messages, answers, BAD
                if kind == 5 and len(body) > 2 and body[2] > 127:
                    continue
            elif length != {13: 0, 9: 3}.get(kind, 2):
                return messages, answers, BAD
            if kind == 5:
                answers.append((6, uint16_at(body, 0)))
            elif kind == 6:
                packet_id = uint16_at(body, 0)
                if packet_id in stored:
                    messages += stored.pop(packet_id)
                answers.append((7, packet_id))
            continue
        state = take_publish(head, body, large, messages, answers, stored)
        if state != OK:
            return messages, answers, state
    return messages, answers, OK


def uint16_at(body, i):
    return body[i] << 8 | body[i + 1]


def take_publish(head, body, large, messages, answers, stored):
    qos = head >> 1 & 3
    n = uint16_at(body, 0) if len(body) > 1 else 99999
    k = 2 + n + (2 if qos else 0)
    if version[0] == 5 and k <= len(body):
        after = after_properties(body, k, _OF_PUBLISH)
        if after is None:
            return ODD if large else BAD
        k = after
    if k > len(body) or qos == 3:
        return BAD
    topic = bytes(body[2 : 2 + n])
    packet_id = uint16_at(body, 2 + n) if qos else 0
    if qos and not packet_id:
        return BAD
    if large and (k >= len(body) or n > 40 or not good_text(topic) or not topic.replace(b"/", b"").isalpha()):
        return ODD
    if not topic or b"\0" in topic or not good_text(topic):  # it is dropped; one with a wildcard is handed over
        if qos == 2 and packet_id in stored and head & 8:
            return ODD
        if qos:
            answers.append((4 if qos == 1 else 5, packet_id))
        return OK
    message = [(topic, bytes(body[k:]))]
    known = stored.get(packet_id)
    if large:
        message = []
    if qos < 2:
        messages += message
    if qos == 1:
        answers.append((4, packet_id))
    elif qos == 2:
        if known is not None and large:
            return ODD
        if known is not None and not (head & 8 and known in (message, [])):
            messages += known  # another message under the same id: the broker lost the session
            known = None
        if known is None:
            stored[packet_id] = message
        answers.append((5, packet_id))
    return OK


# Names of the properties that a broker may send with a PUBLISH, and with an acknowledgement.
_OF_PUBLISH = (
    "payload_format_indicator", "message_expiry_interval", "content_type", "response_topic", "correlation_data",
    "subscription_identifier", "user_property",
)  # fmt: skip
_OF_ANSWER = ("reason_string", "user_property")


def after_properties(body, at, names):
    """Return the index behind the properties at body[at]; None if they are malformed."""
    length = shift = 0
    while True:
        if at >= len(body) or shift > 21:
            return None
        length |= (body[at] & 127) << shift
        shift += 7
        at += 1
        if body[at - 1] < 128:
            break
    end = at + length
    if end > len(body):
        return None
    seen = []
    while at < end:
        found = [name for name in names if PROPERTIES[name][0] == body[at]]
        if not found or found[0] in seen and found[0] not in ("user_property", "subscription_identifier"):
            return None
        seen += found
        at += 1
        kind = PROPERTIES[found[0]][1]
        if kind == "variable":
            digits = 0
            while at < end and body[at] > 127:
                at += 1
                digits += 1
            if digits > 3:
                return None
            at += 1
        elif kind == "text" or kind == "pair":
            for _ in range(1 if kind == "text" else 2):
                at += 2 + (uint16_at(body, at) if at + 1 < end else 1 << 20)
        else:
            at += kind
    return at if at == end else None


def good_body(kind, body):
    """Return whether this body of a packet other than PUBLISH is well-formed and harmless in MQTT 5.

    A well-formed packet does no harm even if the client waits for none.
    """
    if kind == 13:
        return not body
    if kind == 9 or kind == 11:
        after = after_properties(body, 2, _OF_ANSWER)
        return after is not None and after == len(body) - 1
    return len(body) in (2, 3) or len(body) > 3 and after_properties(body, 3, _OF_ANSWER) == len(body)


def good_text(text):
    """Return whether the text is UTF-8 (RFC 3629), decoded by hand: the interpreters' decoders differ."""
    i = 0
    while i < len(text):
        byte = text[i]
        if byte < 0x80:
            n, code, least = 0, byte, 0
        elif 0xC0 <= byte < 0xE0:
            n, code, least = 1, byte & 0x1F, 0x80
        elif 0xE0 <= byte < 0xF0:
            n, code, least = 2, byte & 0x0F, 0x800
        elif 0xF0 <= byte < 0xF8:
            n, code, least = 3, byte & 0x07, 0x10000
        else:
            return False
        tail = text[i + 1 : i + 1 + n]
        for byte in tail:
            if byte & 0xC0 != 0x80:
                return False
            code = code << 6 | byte & 0x3F
        if len(tail) < n or code < least or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            return False
        i += n + 1
    return True


# Ingredients of the streams

TOPICS = (b"t", b"a/b", b"\xc3\xa4/x", b"/", b"long/" + b"x" * 60)


def some_properties(rng, kind):
    """Return random properties for a packet of this kind; b"" before MQTT 5."""
    if version[0] != 5:
        return b""
    if rng.chance(50):
        return b"\0"
    if kind != 3:
        return properties(reason_string=rng.bytes(rng.below(9)), user_property=[(b"a", b"b")] * rng.below(3))
    return properties(
        message_expiry_interval=rng.below(1 << 30), content_type=b"text", correlation_data=rng.bytes(rng.below(20)),
        subscription_identifier=[1, 128, 70000][: rng.below(4)], user_property=[(b"a", b"b")] * rng.below(12),
    )  # fmt: skip


def reason(rng, kind):
    """Return what may follow the packet id of an acknowledgement; b"" before MQTT 5."""
    if version[0] != 5 or rng.chance(40):
        return b""
    code = bytes((rng.choice((0, 0, 0x10, 0x87, 0x92, 0x97)),))
    return code if rng.chance(50) else code + some_properties(rng, kind)


def valid_packet(rng):
    kind = rng.below(10)
    packet_id = rng.choice((1, 2, 3, 257, 65535))
    if kind < 5:
        qos = rng.below(3)
        size = rng.choice((0, 1, 5, 30, 100, 127, 128, 300))
        dup = qos > 0 and rng.chance(20)
        topic, payload, retain = rng.choice(TOPICS), rng.bytes(size), rng.chance(20)
        return publish(topic, payload, qos, packet_id, retain=retain, dup=dup, properties=some_properties(rng, 3))
    if kind < 8:
        ack = rng.choice((4, 5, 6, 6, 7))
        return encode(ack << 4 | (2 if ack == 6 else 0), uint16(packet_id) + reason(rng, ack))
    if kind == 8:
        unsuback = some_properties(rng, 11)
        if unsuback:
            unsuback += b"\x11"
        return rng.choice((b"\xd0\x00", encode(0xB0, uint16(packet_id) + unsuback)))
    return encode(0x90, uint16(packet_id) + some_properties(rng, 9) + bytes((rng.choice((0, 1, 2, 128)),)))


def strange_properties(rng):
    """Return a packet with invalid properties, or one that only MQTT 5 has."""
    return rng.choice(
        (
            publish(b"t", b"x", properties=b"\2\x7f\0"),
            publish(b"t", b"x", properties=properties(receive_maximum=5)),
            publish(b"t", b"x", properties=properties(content_type=[b"a", b"b"])),
            publish(b"t", b"x", properties=properties(topic_alias=1)),  # the client has allowed none
            publish(b"t", b"x", 1, 3, properties=b"\5\x26\0\1a\0"),
            publish(b"t", b"", 1, 3, properties=b"\5\3\0\1a"),
            publish(b"t", b"", 1, 3, properties=b"\x85\x80\x80\x80\0"),
            encode(0x40, b"\0\1\0" + properties(content_type=b"x")),
            encode(0x40, b"\0\1\0" + properties(reason_string=[b"x", b"y"])),
            encode(0xB0, b"\0\1\0"),
            encode(0xE0, b"\x8b" + properties(server_reference=b"x")),
            encode(0xE0),
            encode(0xF0, b"\x18\0"),
        )
    )


def strange_packet(rng):
    if version[0] == 5 and rng.chance(50):
        return strange_properties(rng)
    return rng.choice(
        (
            b"\x20\x02\x01\x00",
            b"\x10\x00",
            b"\x82\x05\x00\x01\x00\x01t",
            b"\xc0\x00",
            b"\xe0\x00",
            b"\x00\x00",
            b"\xf0\x00",
            b"\x30\xff\xff\xff\xff\x7f",
            b"\x30\xff\xff\xff\x7f",
            b"\x40\xff\xff\xff\x7f",
            b"\x62\x02\x00",
            b"\x30\x80\x80\x80\x00",
            encode(0x30, string(b"a/+")),
            encode(0x30, string(b"a\0")),
            encode(0x30, string(b"\xed\xa0\x80")),
            encode(0x30, string(b"\xff\xfe")),
            encode(0x30, string(b"")),
            encode(0x32, string(b"t") + b"\0\0"),
            encode(0x36, string(b"t") + b"\0\1"),
            encode(0x38, string(b"t")),
            encode(0x30, b"\xff\xfft"),
            encode(0x32, string(b"t") + b"\0"),
            encode(0x30, b""),
            encode(0x32, string(b"large") + b"\0\0" + bytes(200)),
            encode(0x34, string(b"la#ge") + b"\0\1" + bytes(200)),
            encode(0x30, uint16(300) + bytes(200)),
        )
    )


def make_stream(rng):
    """Return a stream of packets that begins after CONNACK."""
    if rng.chance(10):
        return rng.bytes(rng.between(1, 200))
    data = b""
    for _ in range(rng.between(1, 8)):
        data += strange_packet(rng) if rng.chance(8) else valid_packet(rng)
    if rng.chance(60):
        return mutate(data, rng)
    return data


def mutate(data, rng):
    for _ in range(rng.between(1, 3)):
        at = rng.below(len(data) or 1)
        how = rng.below(5)
        if how == 0:
            data = data[:at] + bytes((rng.below(256),)) + data[at + 1 :]
        elif how == 1:
            data = data[:at] + data[at + rng.between(1, 9) :]
        elif how == 2:
            data = data[:at] + rng.bytes(rng.between(1, 5)) + data[at:]
        elif how == 3:
            data = data[:at]
        else:
            data = data[:at] + bytes((data[at] ^ 1 << rng.below(8),)) + data[at + 1 :] if data else b""
    return data
