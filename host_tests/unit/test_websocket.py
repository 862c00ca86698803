"""WebSocket without a network: handshake, frames, every split, and violations of RFC 6455."""

from binascii import b2a_base64
from hashlib import sha1

from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import ProtocolError
from umqtt_robust.websocket import UpgradeRefused, WebSocket

TIMEOUT_S = 100


class Link:
    """The transport below: it delivers the server's data in pieces, and accepts as many bytes as it is told to."""

    def __init__(self):
        self.down = []  # pieces to be read; 0: the end of the stream
        self.up = b""
        self.takes = None  # bytes that it still accepts; None: all
        self.socket = "socket"
        self.is_ready = True
        self.closed = False
        self.waited = []

    def ready(self):
        return self.is_ready

    def read(self, buf, offset):
        if not self.down:
            return None
        piece = self.down.pop(0)
        if not piece:
            return 0
        n = min(len(piece), len(buf) - offset)
        buf[offset : offset + n] = piece[:n]
        if piece[n:]:
            self.down.insert(0, piece[n:])
        return n

    def write(self, buf, offset, size):
        if self.takes is not None:
            size = min(size, self.takes)
            self.takes -= size
        self.up += bytes(memoryview(buf)[offset : offset + size])
        return size or None

    def wait(self, ms, writing):
        self.waited.append(writing)

    def close(self):
        self.closed = True


def answer_to(request, **change):
    """Return the server's answer to the handshake; change: headers by name, `_` for `-`; None leaves one out."""
    lines = request.split(b"\r\n")
    key = [line[19:] for line in lines if line.startswith(b"Sec-WebSocket-Key: ")][0]
    accept = b2a_base64(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())[:-1]
    headers = {
        "Upgrade": b"WebSocket",
        "Connection": b"keep-alive, Upgrade",
        "Sec-WebSocket-Accept": accept,
        "Sec-WebSocket-Protocol": b"mqtt",
    }
    status = change.pop("status", b"HTTP/1.1 101 Switching Protocols")
    for name in change:
        headers[name.replace("_", "-")] = change[name]
    for name in headers:
        if headers[name] is not None:
            status += b"\r\n" + name.encode() + b": " + headers[name]
    return status + b"\r\n\r\n"


def begun():
    link = Link()
    ws = WebSocket(lambda host, port, path: link)("broker.example", 8080, "/mqtt")
    assert not ws.ready()
    return ws, link


def opened():
    ws, link = begun()
    link.down.append(answer_to(link.up))
    assert ws.ready()
    link.up = b""
    return ws, link


def frame(payload, head=0x82, length=None):
    n = len(payload) if length is None else length
    if n < 126:
        size = bytes((n,))
    elif n < 65536:
        size = bytes((126, n >> 8, n & 255))
    else:
        size = b"\x7f" + n.to_bytes(8, "big")
    return bytes((head,)) + size + payload


def unmasked(data):
    """Return [(first byte, payload)] of the frames of a client; every frame must be masked and complete."""
    frames = []
    while data:
        assert data[1] & 0x80, "not masked"
        n = data[1] & 0x7F
        i = 2
        if n == 126:
            n = data[2] << 8 | data[3]
            i = 4
        assert n < 127 and len(data) >= i + 4 + n or i == 4
        mask = data[i : i + 4]
        i += 4
        frames.append((data[0], bytes([data[i + k] ^ mask[k & 3] for k in range(n)])))
        data = data[i + n :]
    return frames


def read_all(ws, size=64):
    buf = bytearray(size)
    got = b""
    nothing = 0
    while nothing < 3:
        n = ws.read(buf, 3)
        if n == 0:
            return got, True
        nothing = 0 if n else nothing + 1 if not ws._link.down else 0
        got += bytes(buf[3 : 3 + (n or 0)])
    return got, False


def test_the_request_names_path_host_and_protocol():
    ws, link = begun()
    lines = link.up.split(b"\r\n")
    equal(lines[0], b"GET /mqtt HTTP/1.1")
    for line in (b"Host: broker.example:8080", b"Upgrade: websocket", b"Connection: Upgrade",
                 b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Protocol: mqtt"):  # fmt: skip
        assert line in lines, line
    equal(lines[-2:], [b"", b""])
    assert link.up != begun()[1].up, "the key must differ"


def test_the_request_to_an_ipv6_address_has_it_in_brackets():
    link = Link()
    WebSocket(lambda host, port, path: link)("::1", 8080, "/").ready()
    assert b"Host: [::1]:8080" in link.up.split(b"\r\n"), link.up


def test_the_link_below_hears_that_the_broker_has_accepted():
    # Planted: the address of a broker behind a web server never counts as good.
    heard = []
    link = Link()
    link.accepted = lambda: heard.append(True)
    WebSocket(lambda host, port, path: link)("broker.example", 80, "/").accepted()
    equal(heard, [True])
    equal(begun()[0].accepted, None)  # a transport need not have this attribute


def test_an_answer_may_hold_bytes_that_are_not_utf_8():
    ws, link = begun()
    link.down.append(answer_to(link.up, Server=b"caf\xe9"))
    assert ws.ready()
    ws, link = begun()
    link.down.append(answer_to(link.up, status=b"HTTP/1.1 403 Verboten f\xfcr alle"))
    raises(UpgradeRefused, ws.ready)


def test_the_handshake_goes_on_whatever_the_splits():
    ws, link = begun()
    whole = answer_to(link.up) + frame(b"first")
    for at in range(1, len(whole)):
        ws, link = begun()
        whole = answer_to(link.up) + frame(b"first")
        link.down = [whole[:at]]
        equal(ws.ready(), at >= len(whole) - 7, at)
        link.down.append(whole[at:])
        equal(ws.ready(), True)
        equal(read_all(ws), (b"first", False))


def test_a_link_that_takes_little_gets_the_request_in_parts():
    link = Link()
    link.takes = 0
    link.is_ready = False
    ws = WebSocket(lambda host, port, path: link)("a", 80, "/")
    assert not ws.ready() and not link.up
    link.is_ready = True
    for _ in range(1000):
        if link.up[-4:] == b"\r\n\r\n":
            break
        link.takes = 1
        assert not ws.ready()
    link.down.append(answer_to(link.up))
    link.takes = None
    assert ws.ready()


def test_an_answer_that_is_not_the_protocols_is_refused():
    for change in (
        {"status": b"HTTP/1.1 404 Not Found"},
        {"status": b"HTTP/1.1 200 OK"},
        {"status": b"MQTT"},
        {"Upgrade": None},
        {"Upgrade": b"h2c"},
        {"Connection": b"close"},
        {"Sec_WebSocket_Accept": b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="},
        {"Sec_WebSocket_Accept": None},
        {"Sec_WebSocket_Protocol": b"mqttv3.1"},
        {"Sec_WebSocket_Protocol": None},
        {"Sec_WebSocket_Extensions": b"permessage-deflate"},
    ):
        ws, link = begun()
        link.down.append(answer_to(link.up, **change))
        raises(UpgradeRefused, ws.ready)
    ws, link = begun()
    link.down.append(b"HTTP/1.1 101 x\r\n" + b"a: b\r\n" * 1000)
    raises(UpgradeRefused, ws.ready)
    assert len(ws._answer) < 1100
    ws, link = begun()
    link.down += [b"HTTP/1.1", 0]
    raises(UpgradeRefused, ws.ready)


def test_every_split_of_what_the_server_sends_gives_the_same_bytes():
    server = frame(b"0123", 0x02) + frame(b"are you there?", 0x89) + frame(b"4567", 0x00)
    server += frame(b"", 0x8A) + frame(b"", 0x00) + frame(b"89", 0x80) + frame(b"x" * 300) + frame(b"", 0x89)
    server += frame(b"y" * 126) + frame(b"z", 0x82)
    expected = b"0123456789" + b"x" * 300 + b"y" * 126 + b"z"
    splits = [[server[:at], server[at:]] for at in range(1, len(server))]
    splits += [Rng(seed, quiet=True).pieces(server, 40) for seed in range(60)]
    splits.append([server[i : i + 1] for i in range(len(server))])
    for pieces in splits:
        ws, link = opened()
        link.down = list(pieces)
        equal(read_all(ws), (expected, False), [len(piece) for piece in pieces])
        equal(unmasked(link.up), [(0x8A, b"are you there?"), (0x8A, b"")])


def test_a_frame_of_any_length_passes():
    for n in (0, 1, 125, 126, 127, 65535, 65536, 70000):
        ws, link = opened()
        link.down = Rng(n, quiet=True).pieces(frame(b"w" * n) + frame(b"end"), 5000)
        got, ended = read_all(ws, 1024)
        equal((len(got), got[-3:], ended), (n + 3, b"end", False))


def test_what_is_sent_is_masked_and_framed():
    for size in (1, 4, 5, 125, 126, 127, 1023, 1024, 1025, 5000):
        ws, link = opened()
        data = Rng(size, quiet=True).bytes(size)
        sent = 0
        while sent < size:
            sent += ws.write(b"?" + data, 1 + sent, size - sent)
        frames = unmasked(link.up)
        equal(b"".join([payload for _, payload in frames]), data)
        equal({head for head, _ in frames}, {0x82})


def test_masks_differ():
    ws, link = opened()
    ws.write(b"same", 0, 4)
    ws.write(b"same", 0, 4)
    assert link.up[:10] != link.up[10:]


def test_a_link_that_takes_any_part_of_a_frame_loses_nothing():
    data = b"0123456789" * 13
    for first in range(1, 140):
        ws, link = opened()
        link.takes = first
        sent = ws.write(data, 0, 50) or 0
        link.down.append(frame(b"p", 0x89))
        ws.read(bytearray(9), 0)
        for _ in range(300):
            if sent == len(data):
                break
            link.takes = 7
            # Meanwhile there is more to send; the first bytes are the same.
            sent += ws.write(data, sent, len(data) - sent) or 0
        link.takes = None
        assert ws._flush()
        frames = unmasked(link.up)
        equal(b"".join([payload for head, payload in frames if head == 0x82]), data, first)
        equal([payload for head, payload in frames if head == 0x8A], [b"p"])


def test_answers_to_a_flood_of_pings_stay_bounded():
    ws, link = opened()
    link.takes = 0
    link.down = [frame(b"p" * 125, 0x89)] * 100
    read_all(ws, 200)
    assert len(ws._out) < 1300, len(ws._out)


def test_close_is_answered_and_is_the_end():
    ws, link = opened()
    link.down = [frame(b"last") + frame(b"\x03\xe8bye", 0x88) + frame(b"too late")]
    equal(read_all(ws), (b"last", True))
    equal(unmasked(link.up), [(0x88, b"\x03\xe8")])
    equal(ws.read(bytearray(4), 0), 0)
    ws.close()
    equal(len(unmasked(link.up)), 1)
    assert link.closed


def test_closing_says_so():
    ws, link = opened()
    ws.close()
    equal(unmasked(link.up), [(0x88, b"\x03\xe8")])
    assert link.closed and ws.socket is None


def test_the_end_of_the_link_is_the_end():
    ws, link = opened()
    link.down = [frame(b"half", length=9), 0]
    equal(read_all(ws), (b"half", True))


def test_frames_that_break_the_protocol_close_the_link():
    for bad in (
        b"\x82\x81mask!",  # masked by the server
        b"\x81\x01t",  # text
        b"\x80\x01c",  # a continuation without a beginning
        b"\xc2\x01r",  # a reserved bit
        b"\x83\x01o",  # a reserved opcode
        b"\x8b\x00",  # a reserved control frame
        b"\x09\x00",  # a fragmented control frame
        b"\x89\x7e\x00\x7e",  # a long control frame
        b"\x02\x01a\x82\x01b",  # a new message inside another
        b"\x02\x01a\x02\x01b",
    ):
        ws, link = opened()
        link.down.append(bad)
        raises(ProtocolError, read_all, ws)


def test_it_waits_for_what_can_come():
    ws, link = begun()
    ws.wait(1, True)  # the server has to answer first
    link.down.append(answer_to(link.up))
    ws.ready()
    ws.wait(1, True)
    ws.wait(1, False)
    link.takes = 3
    ws.write(b"abc", 0, 3)
    ws.wait(1, False)
    equal(link.waited, [False, True, False, True])
