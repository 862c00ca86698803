"""The scripted peer does what its script says, and reports what it received instead."""

import socket

import pytest
from umqtt_testkit.encoder import acknowledgement, connack, publish
from umqtt_testkit.peer import PeerError, ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01c"


@pytest.fixture
def client(peer: ScriptedPeer):
    with socket.create_connection((peer.host, peer.port), timeout=WAIT_LIMIT_S) as sock:
        yield sock


def test_a_dialogue_in_one_thread(peer: ScriptedPeer, client: socket.socket):
    link = peer.accept()
    client.sendall(CONNECT + publish(b"t", b"x", 1, 5))
    assert link.accept_session().keep_alive == 10
    link.answer(link.expect(Type.PUBLISH, topic_name=b"t", packet_id=5))
    answers = connack() + acknowledgement(Type.PUBACK, 5)
    assert client.recv(len(answers), socket.MSG_WAITALL) == answers


def test_answers_to_one_that_was_killed_are_lost_and_its_end_is_seen(peer: ScriptedPeer, client: socket.socket):
    """Planted: the first or the second answer to a dead link ends the script."""
    link = peer.accept()
    client.sendall(CONNECT + publish(b"t", b"x", 1, 5) * 3)
    link.accept_session()
    client.close()  # a reset: it has not read its CONNACK
    for _ in range(3):
        link.answer(link.expect(Type.PUBLISH))
    assert link.receive() is None


def test_drive_is_called_while_the_peer_waits(peer: ScriptedPeer, client: socket.socket):
    pieces = [CONNECT[i : i + 1] for i in range(len(CONNECT))]
    peer.drive = lambda: pieces and client.send(pieces.pop(0))
    peer.accept().expect(Type.CONNECT, client_id=b"c", clean_session=True)
    assert not pieces


def test_a_script_in_a_thread_is_waited_for_and_its_error_raised():
    def script(peer: ScriptedPeer) -> None:
        peer.accept().expect(Type.CONNECT, client_id=b"someone else")

    with pytest.raises(PeerError, match="client_id is b'c'"), ScriptedPeer() as peer:
        peer.run(script)
        with socket.create_connection((peer.host, peer.port)) as client:
            client.sendall(CONNECT)
            peer.join()


def test_a_script_that_waits_in_vain_fails_and_the_peer_can_still_be_closed():
    with pytest.raises(PeerError, match="no connection within"), ScriptedPeer(timeout_s=0.05) as peer:
        # A client of another test may still be looking for whoever had this port before.
        peer.run(lambda peer: [peer.accept() for _ in range(1000)] and None)


def test_an_error_of_the_test_itself_wins_over_the_script_it_interrupts():
    with pytest.raises(ZeroDivisionError), ScriptedPeer() as peer:
        peer.run(lambda peer: peer.accept() and None)
        raise ZeroDivisionError


def test_reset_and_close_are_told_apart(peer: ScriptedPeer, client: socket.socket):
    peer.accept().reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection((peer.host, peer.port)) as second:
        peer.accept().finish()
        assert second.recv(1) == b""


def test_the_end_of_the_other_side_is_expected_or_reported(peer: ScriptedPeer):
    with socket.create_connection((peer.host, peer.port)):
        link = peer.accept()
    assert link.expect_closed() == "closed"
    with socket.create_connection((peer.host, peer.port)) as torn:
        link = peer.accept()
        torn.sendall(CONNECT[:5])
    with pytest.raises(PeerError, match="closed inside a packet"):
        link.expect(Type.CONNECT)


@pytest.mark.parametrize(
    ("sent", "complaint", "timeout_s"),
    [
        (b"\xc0\x00", "expected CONNECT .*PINGREQ", WAIT_LIMIT_S),
        (b"\x30\x00", "malformed packet: PUBLISH", WAIT_LIMIT_S),
        (b"\x10", "nothing came within", 0.05),
    ],
)
def test_what_came_instead_is_said(sent: bytes, complaint: str, timeout_s: float):
    with ScriptedPeer(timeout_s=timeout_s) as peer, socket.create_connection((peer.host, peer.port)) as client:
        link = peer.accept()
        client.sendall(sent)
        with pytest.raises(PeerError, match=complaint):
            link.expect(Type.CONNECT)


def test_silence_is_expected_or_its_breach_reported(peer: ScriptedPeer, client: socket.socket):
    link = peer.accept()
    link.expect_nothing(0.01)
    client.sendall(b"\xc0\x00")
    with pytest.raises(PeerError, match=r"expected silence, got .*PINGREQ"):
        link.expect_nothing(WAIT_LIMIT_S)


def test_refused_after_refuse(peer: ScriptedPeer):
    peer.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((peer.host, peer.port))
    # Nobody else on this machine gets the port while the peer exists.
    with pytest.raises(OSError, match="in use"), socket.socket() as stranger:
        stranger.bind((peer.host, peer.port))
