"""The exchanges of umqtt.simple and umqtt.robust, packet by packet; host_tests/transports has them with a broker."""

from __future__ import annotations

import pytest
from umqtt_testkit.encoder import acknowledgement, publish
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.wire import Type

HEAD = """
from umqtt_robust.%s import MQTTClient
c = MQTTClient("old", "127.0.0.1", PORT, keepalive=30)
c.set_callback(lambda topic, msg: print("got", topic, msg))
"""


@pytest.fixture
def run(run_program):
    """Provide run(program, script, api), which returns what the program printed while the peer played the script."""
    return lambda program, script, api="simple": run_program(HEAD % api + program, script)


def session(peer: ScriptedPeer, **connack: object) -> Link:
    link = peer.accept()
    link.accept_session(**connack)
    return link


def test_robust_calls_a_connect_that_the_program_overrides(run):
    def script(peer):
        link = session(peer)
        link.answer(link.expect(Type.SUBSCRIBE))
        # A reset now would also drop a SUBACK that the program has not read yet.
        link.send(publish(b"t", b"first", qos=1, packet_id=3))
        link.expect(Type.PUBACK, packet_id=3)
        link.reset()
        link = session(peer)
        link.answer(link.expect(Type.SUBSCRIBE))
        link.send(publish(b"t", b"late"))
        link.expect(Type.DISCONNECT)

    program = """
class Mine(MQTTClient):
    DELAY = 0
    def connect(self, clean_session=True):
        present = super().connect(clean_session)
        self.subscribe(b"t")
        return present
mine = Mine("old", "127.0.0.1", PORT, keepalive=30)
mine.set_callback(c.cb)
mine.connect()
mine.wait_msg()
mine.wait_msg()
mine.disconnect()
"""
    assert run(program, script, "robust") == ["got b't' b'first'", "got b't' b'late'"]


def test_a_session_that_the_broker_kept_gives_its_messages_to_the_callback(run):
    def script(peer):
        link = peer.accept()
        assert not link.accept_session(session_present=True).clean_session
        link.send(publish(b"t", b"kept", qos=1, packet_id=3))
        link.expect(Type.PUBACK, packet_id=3)
        link.expect(Type.DISCONNECT)

    program = "print(c.connect(clean_session=False)); c.wait_msg(); c.disconnect()"
    assert run(program, script) == ["True", "got b't' b'kept'"]


def test_what_the_callback_raises_reaches_the_program_and_the_message_is_not_acknowledged(run):
    def script(peer):
        link = session(peer)
        link.answer(link.expect(Type.SUBSCRIBE))
        link.send(publish(b"t", b"x", qos=1, packet_id=9))
        link.expect(Type.DISCONNECT)

    program = """
def callback(topic, msg):
    raise ValueError(msg)
c.set_callback(callback)
c.connect()
c.subscribe(b"t", 1)
try:
    c.wait_msg()
except ValueError as error:
    print("raised", error.args[0])
c.disconnect()
"""
    assert run(program, script) == ["raised b'x'"]


def test_half_a_message_is_never_delivered(run):
    def script(peer):
        link = session(peer)
        link.answer(link.expect(Type.SUBSCRIBE))
        link.send(publish(b"t", b"the whole message")[:-4])
        link.finish()

    program = """
c.connect()
c.subscribe(b"t")
try:
    c.wait_msg()
except OSError:
    print("OSError")
"""
    assert run(program, script) == ["OSError"]


def test_a_message_at_qos_2_that_the_broker_releases_on_a_new_link_reaches_the_callback(run):
    def script(peer):
        link = session(peer)
        link.send(publish(b"t", b"once", qos=2, packet_id=5))
        link.expect(Type.PUBREC, packet_id=5)
        link.reset()
        link = session(peer, session_present=True)
        link.send(acknowledgement(Type.PUBREL, 5))
        link.expect(Type.PUBCOMP, packet_id=5)
        link.send(publish(b"t", b"next"))
        link.expect(Type.DISCONNECT)

    program = """
c.connect(clean_session=False)
try:
    c.wait_msg()
except OSError:
    print("OSError")
c.connect(clean_session=False)
c.wait_msg()
c.wait_msg()
c.disconnect()
"""
    assert run(program, script) == ["OSError", "got b't' b'once'", "got b't' b'next'"]


def test_a_packet_id_that_a_kept_session_may_know_is_not_used_for_another_message(run):
    ids = []

    def script(peer):
        for present in (False, True):
            link = session(peer, session_present=present)
            ids.append(link.expect(Type.PUBLISH, qos=2).packet_id)
            link.close()

    program = """
for payload in (b"one", b"two"):
    c.connect(clean_session=False)
    try:
        c.publish(b"t", payload, qos=2)
    except OSError:
        print("OSError")
"""
    assert run(program, script) == ["OSError"] * 2
    assert ids[0] != ids[1], "the broker would take the second for the first"
