"""Enhanced authentication of MQTT 5, with a scripted broker.

The method is SCRAM-SHA-256, with the example of RFC 7677.
"""

import hashlib
from binascii import a2b_base64, b2a_base64

from test_mqtt5 import Link, up
from umqtt_testkit import encoder
from umqtt_testkit.encoder import connack, properties
from umqtt_testkit.portable import equal, raises

from umqtt_robust import Client
from umqtt_robust.base_errors import LinkLost, MQTTError, ProtocolError
from umqtt_robust.errors import InvalidArgument, Refused

METHOD = b"SCRAM-SHA-256"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
PROOF = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _hmac(key, message):
    def digest(data):
        return hashlib.sha256(data).digest()

    key = key + bytes(64 - len(key))
    inner = digest(bytes([byte ^ 0x36 for byte in key]) + message)
    return digest(bytes([byte ^ 0x5C for byte in key]) + inner)


def _xor(one, other):
    return bytes([one[i] ^ other[i] for i in range(len(one))])


def scram():
    """Run the client's side of SCRAM-SHA-256, with the user and the nonce of the example."""
    challenge = yield FIRST
    nonce, salt, iterations = [field[2:] for field in challenge.split(b",")]
    salted = block = _hmac(b"pencil", a2b_base64(salt) + b"\0\0\0\1")
    for _ in range(int(iterations) - 1):
        block = _hmac(b"pencil", block)
        salted = _xor(salted, block)
    final = b"c=biws,r=" + nonce
    signed = FIRST[3:] + b"," + challenge + b"," + final
    key = _hmac(salted, b"Client Key")
    proof = _xor(key, _hmac(hashlib.sha256(key).digest(), signed))
    answer = yield final + b",p=" + b2a_base64(proof)[:-1]
    if answer != b"v=" + b2a_base64(_hmac(_hmac(salted, b"Server Key"), signed))[:-1]:
        raise LinkLost("the broker does not know the password")


def short():
    """Run an exchange with one challenge, which is fast."""
    challenge = yield b"first"
    proof = yield b"answer to " + challenge
    if proof != b"proof":
        raise LinkLost("wrong proof")


def _said(data=None, method=METHOD, **more):
    if method is not None:
        more["authentication_method"] = method
    if data is not None:
        more["authentication_data"] = data
    return properties(**more)


def _auth(reason, data=None, **more):
    return encoder.encode(0xF0, bytes((reason,)) + _said(data, **more))


class Broker(Link):
    """A link on which CONNECT was sent."""

    def __init__(self, exchange=short, **options):
        super().__init__(**options)
        if exchange:
            self.session.part("enhanced_auth").use("SCRAM-SHA-256", exchange)
        self.begin()

    def begin(self):
        self.sent = b""
        self.session.open(self._write, "b")

    def sent_auth(self):
        """Return (reason code, properties) of each AUTH that was sent."""
        return [
            (body[0], encoder.parse_properties(body, 1)[0])
            for first, body in encoder.split_packets(self.sent)[0]
            if first == 0xF0
        ]


def test_scram_sha_256_as_in_its_standard():
    # Planted: the client answers the challenge before.
    link = Broker(scram)
    found, _ = encoder.parse_properties(link.packets()[0][1], 10)
    equal((found["authentication_method"], found["authentication_data"]), (METHOD, FIRST))
    assert found["receive_maximum"]
    link.give(_auth(0x18, CHALLENGE))
    equal(link.sent_auth(), [(0x18, {"authentication_method": METHOD, "authentication_data": FINAL})])
    assert not link.session.connected
    link.give(connack(False, 0, _said(PROOF)))
    assert link.session.connected and not link.session.part("enhanced_auth").running


def test_a_broker_that_shows_no_proof_is_left():
    # Planted: the data in CONNACK is not checked.
    wrong = [(connack(False, 0, _said(b"v=AAAA")), LinkLost), (connack(False, 0, _said()), LinkLost),
             (connack(False, 0, b"\0"), ProtocolError),
             (connack(False, 0, _said(b"proof", method=b"OTHER")), ProtocolError)]  # fmt: skip
    for answer, error in wrong:
        link = Broker()
        link.give(_auth(0x18, b"1"))
        equal(type(link.lost(answer)), error)
        assert not link.session.connected
    link = Broker()  # success before the first challenge
    equal(type(link.lost(connack(False, 0, _said(b"proof")))), LinkLost)
    link = Broker()
    equal(link.lost(connack(False, 0x87, b"\0")).args, ("connect", 0x87, b""))
    equal(type(Broker().lost(connack(False, 0x8C, _said(reason_string=b"no")))), Refused)


def test_auth_where_it_may_not_be_ends_the_link():
    # Planted: AUTH with another method is answered.
    for packets in (
        [_auth(0x18, b"1", method=b"OTHER")], [_auth(0x18, b"1", method=None)], [_auth(0x00, b"proof")],
        [_auth(0x19, b"1")], [encoder.encode(0xF0)], [encoder.encode(0xF0, b"\x18")],
        [encoder.encode(0xF1, b"\x18" + _said(b"1"))], [encoder.encode(0xF0, b"\x18" + _said(b"1") + b"x")],
        [encoder.encode(0xF0, b"\x18" + properties(receive_maximum=1))],
    ):  # fmt: skip
        link = Broker()
        link.buf = bytearray(1000)
        equal(type(link.lost(b"".join(packets))), ProtocolError, packets)
    link = Broker(lambda: (yield b"first"))
    equal(type(link.lost(_auth(0x18, b"1"))), ProtocolError)  # the method has nothing more to send
    link = Broker()
    link.give(_auth(0x18, b"1"))
    link.give(connack(False, 0, _said(b"proof")))
    equal(type(link.lost(_auth(0x18, b"1"))), ProtocolError)  # nobody has asked
    for link in (Broker(None), Link()):  # no method was sent
        link.sent = b""
        link.session.open(link._write, "b")
        equal(type(link.lost(_auth(0x18, b"1"))), ProtocolError)


def test_each_link_begins_anew():
    # Planted: the exchange of the last link continues.
    link = Broker()
    link.give(_auth(0x18, b"1"))
    link.session.close()
    link.begin()
    equal(link.sent_auth(), [])
    link.give(_auth(0x18, b"2"))
    link.give(connack(True, 0, _said(b"proof")))
    equal(link.sent_auth()[0][1]["authentication_data"], b"answer to 2")
    assert link.session.connected


def test_a_link_authenticates_again_while_messages_go_on():
    # Planted: a second exchange is answered with the reason code of the one at CONNECT.
    link = Broker()
    again = link.session.part("enhanced_auth")
    raises(MQTTError, again.reauthenticate)
    link.give(_auth(0x18, b"1"))
    link.give(connack(False, 0, _said(b"proof")))
    link.packets()
    again.reauthenticate()
    raises(MQTTError, again.reauthenticate)
    link.session.publish("t", b"x", 1)
    link.session.work()
    link.give(encoder.acknowledgement(encoder.PUBACK, 1) + _auth(0x18, b"3"))
    link.session.work()
    equal([(reason, found["authentication_data"]) for reason, found in link.sent_auth()],
          [(0x19, b"first"), (0x18, b"answer to 3")])  # fmt: skip
    link.give(_auth(0x00, b"proof"))
    equal((link.session.connected, again.running, link.session.pending), (True, False, 0))
    again.reauthenticate()
    link.give(_auth(0x18, b"4"))
    equal(type(link.lost(_auth(0x00, b"forged"))), LinkLost)


def test_an_answer_waits_for_room_in_the_send_buffer_of_its_link():
    # Planted: AUTH that finds no room is forgotten, or is sent on the next link.
    for lost in (False, True):
        link = Broker(tx_size=128)
        link.give(_auth(0x18, b"1"))
        link.give(connack(False, 0, _said(b"proof")))
        link.packets()
        write, link.session.out._write = link.session.out._write, lambda buf, offset, size: 0
        for size in (70, 300):
            link.session.publish("t", bytes(size), 0)
        link.session.part("enhanced_auth").reauthenticate()
        link.session.out._write = write
        if lost:
            link.session.close()
            assert not link.session.part("enhanced_auth").running
            link.begin()
            link.give(_auth(0x18, b"2"))
            link.give(connack(False, 0, _said(b"proof")))
        link.session.work()
        equal([reason for reason, _ in link.sent_auth()], [0x18 if lost else 0x19])


def test_an_answer_may_be_larger_than_the_send_buffer():
    # Planted: AUTH is written only if it fits into the buffer.
    def long():
        yield b"first"
        yield bytes(200)

    link = Broker(long, tx_size=128)
    link.give(_auth(0x18, b"1"))
    link.session.out.flush()
    equal(link.sent_auth()[0][1]["authentication_data"], bytes(200))


def test_however_the_bytes_are_split():
    # Planted: AUTH is processed before it is complete.
    data = _auth(0x18, b"1") + connack(False, 0, _said(b"proof"))
    for at in range(1, len(data)):
        link = Broker()
        link.buf[:at] = data[:at]
        used = link.session.receive(link.buf, at)
        rest = data[used:]
        link.buf[: len(rest)] = rest
        equal(link.session.receive(link.buf, len(rest)), len(rest))
        assert link.session.connected, at


def test_what_the_program_gets_wrong():
    # Planted: protocol="auto" is accepted, although any broker may then skip the authentication.
    for protocol in (4, "auto"):
        raises(InvalidArgument, Client("c", "mqtt://h", protocol=protocol).part, "enhanced_auth")
    raises(InvalidArgument, Client("c", "mqtt://h", protocol=5).part("enhanced_auth").use, b"\xff", short)
    link = Link(up())
    raises(MQTTError, link.session.part("enhanced_auth").reauthenticate)
