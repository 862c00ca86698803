"""Enhanced authentication (MQTT 5, 4.12) by SCRAM-SHA-256: it lets in who knows the password, and nobody else."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, StartBroker
from hypothesis import given
from hypothesis import strategies as st
from peer5 import Packet5, Peer5
from scram_client import ScramClient
from umqtt_broker import Listener, Peer, PermissionHook
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.guesses import Guesses
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_broker.access.scram import ScramExchange, ScramKeys
from umqtt_broker.protocol.connect import Connect
from umqtt_testkit import encoder
from umqtt_testkit.encoder import AUTH, CONNACK, DISCONNECT

METHOD: dict[str, Any] = {"authentication_method": b"SCRAM-SHA-256"}
CONTINUE, AGAIN = 0x18, 0x19


def write_passwords(folder: Path, **users: bytes) -> str:
    """Write a password file in which these users have SCRAM passwords, and "old" one that is hashed differently."""
    passwords = PasswordFile(folder / "passwords")
    for name, password in users.items():
        passwords.set(name.encode(), ScramKeys.make(password, 2))
    passwords.set(b"old", PasswordHash.make(b"right", 1))
    passwords.write()
    return str(passwords.path)


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> BrokerThread:
    """Provide a broker with the users ada, eve, and "a=b,c", whose password is "right"."""
    rules, blacklist = tmp_path / "acl", tmp_path / "blacklist"
    rules.write_text("user ada\ntopic readwrite ada/#\nuser eve\ntopic readwrite eve/#\n")
    blacklist.write_text("username banned\n")
    path = write_passwords(tmp_path, ada=b"right", eve=b"right", banned=b"right", **{"a=b,c": b"right"})
    permission = FilePermission(path, str(rules), client_id_pattern="c*", blacklist_file=str(blacklist))
    return start_broker(permission=permission)


@contextmanager
def connected(broker: BrokerThread, client: ScramClient, **settings: Any) -> Iterator[tuple[Peer5, Packet5]]:
    """Connect a peer through the exchange; yield it and the last answer."""
    with Peer5(broker.port) as peer:
        answer = peer.ask(b"client", authentication_data=client.first, **METHOD, **settings)
        if answer.kind == AUTH:
            answer = go_on(peer, client, answer)
        yield peer, answer


def go_on(peer: Peer5, client: ScramClient, answer: Packet5) -> Packet5:
    """Process the challenge, send the last message, and return the answer."""
    assert (answer.kind, answer.reason_codes) == (AUTH, bytes((CONTINUE,)))
    assert answer.properties["authentication_method"] == b"SCRAM-SHA-256"
    data = client.last(answer.properties["authentication_data"])
    peer.send(encoder.auth(CONTINUE, authentication_data=data, **METHOD))
    return peer.receive()


def again(peer: Peer5, client: ScramClient) -> Packet5:
    """Authenticate again, and return the last answer."""
    peer.send(encoder.auth(AGAIN, authentication_data=client.first, **METHOD))
    return go_on(peer, client, peer.receive())


@pytest.mark.tier(0)
def test_the_exchange_is_that_of_rfc_7677() -> None:
    # Planted: the two keys are swapped; a message is signed without its first part.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    # Made from the password "pencil".
    stored_key, server_key = (
        base64.b64decode(text)
        for text in ("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=", "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")
    )
    keys = ScramKeys(4096, salt, stored_key, server_key)
    assert keys.verify(b"pencil") and not keys.verify(b"Pencil")
    exchange = ScramExchange(lambda _: keys, lambda _: 0, Guesses(), "", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    challenge = b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0.0) == (CONTINUE, challenge)
    last = b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.step(last, 0.0) == (0, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert exchange.user_name == b"user"
    # The client of these tests, which the other tests rely on.
    client = ScramClient(b"user", b"pencil")
    assert client.last(challenge) == last and client.is_server(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_auth_has_the_limit_of_properties_that_connect_has(start_broker: StartBroker, tmp_path: Path) -> None:
    # Planted: AUTH has the limit of the packets of clients that are let in; it is decoded without a limit.
    permission = FilePermission(write_passwords(tmp_path, ada=b"right"))
    broker = start_broker(permission=permission, max_connect_properties_size=2000)
    for size, code in ((1000, b"\x87"), (2000, b"\x97")):
        with Peer5(broker.port) as peer:
            assert peer.ask(b"client", authentication_data=b"n,,n=ada,r=x", **METHOD).kind == AUTH
            peer.send(encoder.auth(CONTINUE, authentication_data=b"x" * size, **METHOD))
            assert [(one.kind, one.reason_codes) for one in peer.wait_closed()] == [(CONNACK, code)]


@pytest.mark.tier(0)
def test_no_other_message_is_a_proof() -> None:
    """Planted: the header is not compared; a ValueError is not caught."""
    keys, client = ScramKeys.make(b"right", 1), ScramClient(b"ada", b"right")

    def last_code(*, at: int = 0, value: int | None = None) -> tuple[int, int]:
        exchange = ScramExchange(lambda _: keys, lambda _: 0, Guesses(), "", "nonce")
        message = bytearray(client.last(exchange.step(client.first, 0.0)[1]))
        message[at : at + 1] = message[at : at + 1] if value is None else bytes((value,))
        return exchange.step(bytes(message), 0.0)[0], len(message)

    assert last_code()[0] == 0
    # The last digit of base64 has two bits without meaning.
    changed = range(last_code()[1] - 2)
    codes = [last_code(at=at, value=value)[0] for at in changed for value in (0, ord(","), ord("="), ord("~"), 255)]
    # Some changes replaced a character by itself.
    assert set(codes) == {0, 0x87} and codes.count(0) < 12


@given(st.lists(st.binary(max_size=60), max_size=4))
@pytest.mark.tier(0)
def test_whatever_is_said_instead_is_refused_without_an_exception(messages: list[bytes]) -> None:
    keys = ScramKeys(1, b"salt", bytes(32), bytes(32))
    exchange = ScramExchange(lambda _: keys, lambda _: 0, Guesses(), "192.0.2.1")
    for message in (b"n,,n=ada,r=nonce", *messages):
        code, _ = exchange.step(message, 0.0)
        assert code in (CONTINUE, 0x87, 0x88)


@pytest.mark.parametrize("user_name", [None, b"ada"])
def test_who_proves_its_password_gets_the_rights_of_its_user(broker: BrokerThread, user_name: bytes | None) -> None:
    # Planted: rights by the user name of the CONNECT; a CONNACK without method or data.
    client = ScramClient(b"ada", b"right")
    with connected(broker, client, user_name=user_name) as (peer, connack):
        assert (connack.kind, connack.reason_codes) == (CONNACK, b"\0")
        assert connack.properties["authentication_method"] == b"SCRAM-SHA-256"
        assert client.is_server(connack.properties["authentication_data"])
        assert peer.publish5(b"ada/x", b"", 1) == 0 and peer.publish5(b"eve/x", b"", 1) == 0x87
    escaped = ScramClient(b"a=3Db=2Cc", b"right")
    with connected(broker, escaped) as (_, connack):
        assert connack.reason_codes == b"\0"


def test_a_password_for_scram_may_be_sent_too_and_one_of_another_kind_must_be(broker: BrokerThread) -> None:
    for name, password, code in ((b"ada", b"right", 0), (b"ada", b"wrong", 0x86), (b"old", b"right", 0)):
        with Peer5(broker.port) as peer:
            assert peer.ask(b"client", user_name=name, password=password).reason_codes == bytes((code,))
    with connected(broker, ScramClient(b"old", b"right")) as (_, connack):
        assert connack.reason_codes == b"\x87"


FIRST = b"n,,n=ada,r=nonce"
REFUSED_AT_ONCE: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "an unknown method": (FIRST, {"authentication_method": b"SCRAM-SHA-1"}, 0x8C),
    "no data": (b"", {}, 0x87),
    "no first message": (b"n,,x=ada,r=nonce", {}, 0x87),
    "an extension that must be understood": (b"n,,m=x,n=ada,r=nonce", {}, 0x87),
    "no nonce": (b"n,,n=ada,r=", {}, 0x87),
    "bytes": (bytes(range(256)), {}, 0x87),
    "channel binding": (b"p=tls-exporter,,n=ada,r=nonce", {}, 0x87),
    "another identity": (b"n,a=eve,n=ada,r=nonce", {}, 0x87),
    "another user name in CONNECT": (FIRST, {"user_name": b"eve"}, 0x87),
    "a user who is banned": (b"n,,n=banned,r=nonce", {}, 0x87),
}


@pytest.mark.parametrize("kind", REFUSED_AT_ONCE)
def test_a_first_message_that_may_not_be_is_refused(broker: BrokerThread, kind: str) -> None:
    # Planted: channel binding is treated as none; the blacklist or the CONNECT's user name is not checked.
    data, settings, code = REFUSED_AT_ONCE[kind]
    with Peer5(broker.port) as peer:
        answer = peer.ask(b"client", authentication_data=data, **METHOD | settings)
        assert (answer.kind, answer.reason_codes) == (CONNACK, bytes((code,)))
        assert peer.wait_closed() == []


def test_a_client_identifier_that_may_not_be_is_told_so(broker: BrokerThread) -> None:
    with Peer5(broker.port) as peer:
        assert peer.ask(b"x", authentication_data=FIRST, **METHOD).reason_codes == b"\x85"


def _proof(challenge: bytes) -> bytes:
    return ScramClient(b"ada", b"right", b"nonce").last(challenge)


def _auth(data: bytes, reason_code: int = CONTINUE, **settings: bytes) -> bytes:
    return encoder.auth(reason_code, **METHOD | {"authentication_data": data} | settings)


_ZEROS = b",p=" + b"A" * 43 + b"="

REFUSED_IN_THE_END = {
    "a wrong password": (lambda challenge: _auth(ScramClient(b"ada", b"wrong", b"nonce").last(challenge)), 0x87),
    "another nonce": (lambda challenge: _auth(_proof(challenge).replace(b"r=nonce", b"r=nonc")), 0x87),
    "another header": (lambda challenge: _auth(ScramClient(b"ada", b"right", b"nonce", b"eSws").last(challenge)), 0x87),
    "no proof": (lambda challenge: _auth(_proof(challenge).partition(b",p=")[0]), 0x87),
    "an empty proof": (lambda challenge: _auth(_proof(challenge).partition(b",p=")[0] + b",p="), 0x87),
    "a proof of zeros": (lambda challenge: _auth(_proof(challenge).partition(b",p=")[0] + _ZEROS), 0x87),
    "no data": (lambda _: _auth(b""), 0x87),
    "the first message again": (lambda _: _auth(FIRST), 0x87),
    "another method": (lambda challenge: _auth(_proof(challenge), authentication_method=b"PLAIN"), 0x82),
    "no method": (lambda challenge: encoder.auth(CONTINUE, authentication_data=_proof(challenge)), 0x82),
    "to begin again": (lambda _: _auth(FIRST, AGAIN), 0x82),
    "success": (lambda challenge: _auth(_proof(challenge), 0), 0x82),
    "nothing": (lambda _: b"\xf0\0", 0x82),
    "flags": (lambda challenge: b"\xf1" + _auth(_proof(challenge))[1:], 0x82),
    "PINGREQ": (lambda _: encoder.pingreq(), 0x82),
    "PUBLISH": (lambda _: encoder.publish(b"ada/x", b"", properties=b"\0"), 0x82),
    "a property that may not stand there": (lambda _: encoder.auth(CONTINUE, **METHOD, topic_alias=1), 0x81),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED_IN_THE_END)
def test_what_does_not_answer_the_challenge_is_refused(broker: BrokerThread, kind: str) -> None:
    # Planted: a proof, a nonce or the method of AUTH is not compared.
    last, code = REFUSED_IN_THE_END[kind]
    with Peer5(broker.port) as peer:
        challenge = peer.ask(b"client", authentication_data=FIRST, **METHOD)
        peer.send(last(challenge.properties["authentication_data"]))
        answer = peer.receive()
        assert (answer.kind, answer.reason_codes) == (CONNACK, bytes((code,)))
        assert peer.wait_closed() == []
    assert broker.call(lambda: broker.stats.sessions) == 0


def test_who_leaves_in_between_is_gone_and_who_says_nothing_has_the_time_of_a_connect(broker: BrokerThread) -> None:
    # Planted: the challenge ends the deadline.
    broker.stop_clock()
    with Peer5(broker.port) as leaves, Peer5(broker.port) as silent:
        for peer in (leaves, silent):
            assert peer.ask(b"client", authentication_data=FIRST, **METHOD).kind == AUTH
        leaves.send(encoder.disconnect())
        assert leaves.wait_closed() == []
        silent.assert_silent()
        broker.advance(10.5)
        assert silent.wait_closed() == []


def test_a_client_authenticates_again_while_messages_go_on(broker: BrokerThread) -> None:
    # Planted: the session is closed meanwhile; the first exchange's nonce satisfies a second exchange.
    client = ScramClient(b"ada", b"right")
    with connected(broker, client) as (peer, _):
        assert peer.subscribe5((b"ada/#", 1)) == b"\x01"
        for number in range(3):
            peer.send(encoder.auth(AGAIN, authentication_data=client.first, **METHOD))
            challenge = peer.receive()
            peer.send(encoder.publish(b"ada/x", b"%d" % number, properties=b"\0"))
            assert peer.receive_message().payload == b"%d" % number
            answer = go_on(peer, client, challenge)
            assert (answer.kind, answer.reason_codes) == (AUTH, b"\0")
            assert client.is_server(answer.properties["authentication_data"])
        assert peer.flush() == []


AGAIN_REFUSED = {
    "a wrong password": ScramClient(b"ada", b"wrong"),
    "another user": ScramClient(b"eve", b"right"),
    "an unknown user": ScramClient(b"nobody", b"right"),
}


@pytest.mark.parametrize("kind", AGAIN_REFUSED)
def test_who_fails_to_authenticate_again_is_disconnected_and_its_will_goes_out(broker: BrokerThread, kind: str) -> None:
    # Planted: the connection continues; another user's name is taken over.
    with connected(broker, ScramClient(b"eve", b"right")) as (watcher, _):
        watcher.subscribe5((b"eve/#", 0))
        with Peer5(broker.port) as peer:
            first = ScramClient(b"ada", b"right")
            challenge = peer.ask(b"c2", authentication_data=first.first, will=(b"ada/will", b"", 0, False), **METHOD)
            assert go_on(peer, first, challenge).reason_codes == b"\0"
            answer = again(peer, AGAIN_REFUSED[kind])
            assert (answer.kind, answer.reason_codes) == (DISCONNECT, b"\x87")
            assert peer.wait_closed() == []
    assert broker.call(lambda: broker.stats.wills) == 1


AGAIN_MALFORMED = {
    "another method": encoder.auth(AGAIN, authentication_method=b"PLAIN", authentication_data=FIRST),
    "an answer to nothing": encoder.auth(CONTINUE, authentication_data=FIRST, **METHOD),
    "success": encoder.auth(0, authentication_data=FIRST, **METHOD),
}


@pytest.mark.parametrize("kind", AGAIN_MALFORMED)
def test_an_auth_out_of_turn_breaks_the_protocol(broker: BrokerThread, kind: str) -> None:
    with connected(broker, ScramClient(b"ada", b"right")) as (peer, _):
        peer.send(AGAIN_MALFORMED[kind])
        assert peer.receive()[:3] == (DISCONNECT, 0, b"\x82")


def test_who_guesses_waits_also_with_connections_that_began_together(broker: BrokerThread) -> None:
    # Planted: the guesses are checked when the exchange begins, but not when it ends.
    broker.stop_clock()
    peers = [Peer5(broker.port) for _ in range(12)]
    try:
        clients = [ScramClient(b"ada", b"%d" % number) for number in range(12)]
        challenges = [
            peer.ask(b"c%d" % number, authentication_data=client.first, **METHOD)
            for number, (peer, client) in enumerate(zip(peers, clients, strict=True))
        ]
        answers = [go_on(*each).reason_codes for each in zip(peers, clients, challenges, strict=True)]
    finally:
        for peer in peers:
            peer.close()
    assert answers == [b"\x87"] * 6 + [b"\x88"] * 6
    with connected(broker, ScramClient(b"eve", b"right")) as (_, connack):
        assert connack.reason_codes == b"\0"
    assert broker.call(lambda: (broker.stats.wrong_passwords, broker.stats.told_to_wait)) == (6, 6)
    broker.advance(2)
    with connected(broker, ScramClient(b"ada", b"right")) as (_, connack):
        assert connack.reason_codes == b"\0"


def test_a_user_who_does_not_exist_looks_like_one_who_does(broker: BrokerThread) -> None:
    # Planted: the salt is random each time.
    def challenge(name: bytes) -> list[bytes]:
        with Peer5(broker.port) as peer:
            answer = peer.ask(b"client", authentication_data=b"n,,n=" + name + b",r=nonce", **METHOD)
            return answer.properties["authentication_data"].split(b",")[1:]

    assert challenge(b"nobody") == challenge(b"nobody") != challenge(b"nobody else")
    assert [len(part) for part in challenge(b"nobody")] == [len(part) for part in challenge(b"ada")]


def test_a_password_that_is_changed_meanwhile_does_not_let_in(start_broker: StartBroker, tmp_path: Path) -> None:
    # Planted: the keys of the beginning count to the end.
    broker = start_broker(permission=FilePermission(write_passwords(tmp_path, ada=b"right")))
    client = ScramClient(b"ada", b"right")
    for users in ({"ada": b"changed"}, {"eve": b"right"}, {}):
        with Peer5(broker.port) as peer:
            write_passwords(tmp_path, ada=b"right")
            broker.call(broker.broker.reload)
            challenge = peer.ask(b"client", authentication_data=client.first, **METHOD)
            write_passwords(tmp_path, **users)
            broker.call(broker.broker.reload)
            assert go_on(peer, client, challenge).reason_codes == b"\x87"
    with Peer5(broker.port) as peer:
        # It has no password for anybody.
        assert peer.ask(b"client", authentication_data=client.first, **METHOD).reason_codes == b"\x8c"


def test_a_hook_with_its_own_connect_and_a_listener_for_certificates_have_no_method(tmp_path: Path) -> None:
    # Planted: a hook passes the method on, so that its connect() is never called.
    class Ours(PermissionHook):
        def connect(self, packet: Connect, peer: Peer) -> int:
            del packet, peer
            return 5

    files = FilePermission(write_passwords(tmp_path, ada=b"right"))
    packet = Connect(5, True, 0, b"client", None, None, None)
    peer = Peer("", None, Listener(port=0))
    assert not isinstance(PermissionHook(files).authenticate(b"SCRAM-SHA-256", packet, peer), int)
    assert Ours(files).authenticate(b"SCRAM-SHA-256", packet, peer) == 0x8C
    certificates = Peer("", "ada", Listener(port=0, use_identity_as_username=True))
    assert files.authenticate(b"SCRAM-SHA-256", packet, certificates) == 0x8C


def test_packets_may_be_cut_and_joined_anywhere(broker: BrokerThread) -> None:
    # Planted: a packet between CONNECT and CONNACK must fit into one read; one after the last AUTH is lost.
    client = ScramClient(b"ada", b"right")
    publish = encoder.publish(b"ada/x", b"payload", 1, 7, properties=b"\0")
    first = encoder.connect(b"client", properties=encoder.properties(authentication_data=client.first, **METHOD))

    def enter(cut: int) -> int:
        with Peer5(broker.port) as peer:
            peer.send(first)
            challenge = peer.receive().properties["authentication_data"]
            data = _auth(client.last(challenge)) + publish
            for part in (data[:cut], data[cut:]):
                peer.send(part)
                broker.wait_read()
            assert peer.receive().reason_codes == b"\0"
            assert peer.receive().packet_id == 7
        return len(data)

    for cut in range(1, enter(1), 7):
        enter(cut)


def test_without_a_method_there_is_none(broker: BrokerThread) -> None:
    with Peer5(broker.port) as peer:
        connack = peer.ask(b"client", user_name=b"ada", password=b"right")
        assert "authentication_method" not in connack.properties
        peer.send(encoder.auth(AGAIN, authentication_data=FIRST, **METHOD))
        assert peer.receive()[:3] == (DISCONNECT, 0, b"\x82")
        assert peer.wait_closed() == []
