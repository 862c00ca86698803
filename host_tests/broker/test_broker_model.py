"""Sessions in every order of events, against a reference: hypothesis looks for the shortest story that goes wrong.

A failure prints the story as a program, and how to make hypothesis run it again; UMQTT_FULL_SWEEPS=1 tries many more
stories, and shortens the one that fails.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from broker_model import Reference, Session, Will
from broker_peer import BrokerThread, Peer
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from umqtt_broker import BrokerConfig
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBREC, PUBREL, UNSUBACK

_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
_WINDOW = 3
_CLIENTS = (b"a", b"b", b"c")
_TOPICS = (b"x", b"x/y", b"$s/y")
_FILTERS = (b"x", b"x/#", b"+/y", b"#", b"$s/+", b"will/+")
_PUBLISH = {"qos": st.integers(0, 2), "topic_name": st.sampled_from(_TOPICS), "retain": st.booleans()}


class Sessions(RuleBasedStateMachine):
    """Three clients act as clients do; after each step everyone has what the reference says, and nothing more."""

    store_on_disk = False

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="umqtt-model-")
        self.reference = Reference(_WINDOW)
        self.numbers = 0
        self.broker: BrokerThread | None = None
        self.start_broker()
        # Most stories need a subscriber that stays; hypothesis would seldom produce one.
        self.come(b"a", False, None)
        peer = self.reference.sessions[b"a"].peer
        assert peer is not None and peer.subscribe(b"#", 2) == 2
        self.reference.subscribe(self.reference.sessions[b"a"], b"#", 2)

    def start_broker(self) -> None:
        store = str(Path(self.folder.name) / "broker.db") if self.store_on_disk else ":memory:"
        # A limit that is never reached, so that what waits is counted.
        config = BrokerConfig(
            port=0,
            store=store,
            max_inflight_messages=_WINDOW,
            max_queued_in_memory=4,
            max_queued_messages_total=1_000_000,
        )
        self.broker = BrokerThread(config)
        self.broker.__enter__()

    def stop_broker(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            broker.__exit__(None, None, None)

    def teardown(self) -> None:
        for session in getattr(self, "reference", Reference(1)).sessions.values():
            if session.peer is not None:
                session.peer.close()
        if hasattr(self, "folder"):
            self.stop_broker()
            self.folder.cleanup()

    # Helpers

    def connected(self, data: st.DataObject) -> tuple[Session, Peer]:
        """Draw one of the connected clients."""
        session = self.reference.sessions[data.draw(st.sampled_from(self.reference.connected), "client")]
        assert session.peer is not None
        return session, session.peer

    def payload(self) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers

    def wait_for_connections(self) -> None:
        """Wait until the broker has noticed every end of a connection, and published every will."""
        broker, wanted = self.broker, len(self.reference.connected)
        assert broker is not None
        broker.wait_until(lambda: broker.stats.connections == wanted)

    def anyone(self) -> bool:
        return bool(self.reference.connected)

    def anyone_owes(self) -> bool:
        sessions = self.reference.sessions.values()
        return any(session.peer is not None and (session.in_flight or session.released) for session in sessions)

    # Coming and going

    @rule(
        client_id=st.sampled_from(_CLIENTS),
        clean=st.sampled_from((False, False, False, True)),
        will_qos=st.none() | st.integers(0, 2),
    )
    def connect(self, client_id: bytes, clean: bool, will_qos: int | None) -> None:
        """Connect a client; if it is connected, the new connection takes over."""
        self.come(client_id, clean, will_qos)

    def come(self, client_id: bytes, clean: bool, will_qos: int | None) -> None:
        old = self.reference.sessions.get(client_id)
        old_peer = old.peer if old is not None else None
        will: Will | None = None
        if will_qos is not None:
            will = b"will/" + client_id, self.payload(), will_qos, bool(self.numbers % 2)
        present = self.reference.connect(client_id, clean)
        assert self.broker is not None
        peer = Peer(self.broker.port)
        assert peer.connect(client_id, clean_session=clean, will=will) is present
        session = self.reference.sessions[client_id]
        session.clean = clean
        session.go_online(peer, will)
        if old_peer is not None:
            old_peer.wait_closed()
            old_peer.close()
            self.wait_for_connections()

    @precondition(anyone)
    @rule(data=st.data(), politely=st.booleans())
    def leave(self, data: st.DataObject, politely: bool) -> None:
        client_id = data.draw(st.sampled_from(self.reference.connected), "client")
        peer = self.reference.sessions[client_id].peer
        assert peer is not None
        self.reference.disconnect(client_id, with_will=not politely)
        if politely:
            peer.disconnect()
        else:
            peer.reset()
        self.wait_for_connections()

    @precondition(anyone)
    @rule(data=st.data())
    def drop_and_return(self, data: st.DataObject) -> None:
        client_id = data.draw(st.sampled_from(self.reference.connected), "client")
        session = self.reference.sessions[client_id]
        assert session.peer is not None
        session.peer.reset()
        self.reference.disconnect(client_id, with_will=True)
        self.wait_for_connections()
        self.come(client_id, False, None)

    # Subscriptions

    @precondition(anyone)
    @rule(data=st.data(), topic_filter=st.sampled_from(_FILTERS), qos=st.integers(0, 2))
    def subscribe(self, data: st.DataObject, topic_filter: bytes, qos: int) -> None:
        session, peer = self.connected(data)
        packet_id = peer.next_id()
        peer.send(encoder.subscribe(packet_id, (topic_filter, qos)))
        suback = peer.receive()
        assert suback.body == packet_id.to_bytes(2, "big") + bytes([qos]), suback
        self.reference.subscribe(session, topic_filter, qos)

    @precondition(anyone)
    @rule(data=st.data(), topic_filter=st.sampled_from(_FILTERS))
    def unsubscribe(self, data: st.DataObject, topic_filter: bytes) -> None:
        session, peer = self.connected(data)
        packet_id = peer.next_id()
        peer.send(encoder.unsubscribe(packet_id, topic_filter))
        session.owed_answers.append((UNSUBACK, packet_id))
        session.subscriptions.pop(topic_filter, None)

    # Messages from clients

    @precondition(anyone)
    @rule(data=st.data(), finish=st.booleans(), empty=st.booleans(), **_PUBLISH)
    def publish(
        self, data: st.DataObject, topic_name: bytes, qos: int, retain: bool, empty: bool, finish: bool
    ) -> None:
        session, peer = self.connected(data)
        payload = b"" if empty and retain else self.payload()
        packet_id = peer.next_id() if qos else 0
        while packet_id in session.unfinished:
            packet_id = peer.next_id()
        peer.send(encoder.publish(topic_name, payload, qos, packet_id, retain=retain))
        self.reference.publish(topic_name, payload, qos, retain)
        if qos == 1:
            session.owed_answers.append((PUBACK, packet_id))
        elif qos == 2:
            session.owed_answers.append((PUBREC, packet_id))
            session.unfinished[packet_id] = topic_name, payload
            if finish:
                self.reference.settle()
                self.finish(session, peer, packet_id)
        # The publisher first: once it has its acknowledgement, everyone's copy is on its way.
        self.reference.settle()

    def finish(self, session: Session, peer: Peer, packet_id: int) -> None:
        peer.send(encoder.acknowledgement(PUBREL, packet_id))
        session.owed_answers.append((PUBCOMP, packet_id))
        del session.unfinished[packet_id]

    @precondition(lambda self: any(each.peer and each.unfinished for each in self.reference.sessions.values()))
    @rule(data=st.data(), release=st.booleans())
    def go_on_with_unfinished(self, data: st.DataObject, release: bool) -> None:
        """Repeat a QoS 2 message, which must not reach anybody twice, or release it."""
        sessions = self.reference.sessions
        with_some = [name for name in self.reference.connected if sessions[name].unfinished]
        session = sessions[data.draw(st.sampled_from(with_some), "client")]
        assert session.peer is not None
        packet_id = data.draw(st.sampled_from(sorted(session.unfinished)), "packet_id")
        if release:
            self.finish(session, session.peer, packet_id)
        else:
            topic_name, payload = session.unfinished[packet_id]
            session.peer.send(encoder.publish(topic_name, payload, 2, packet_id, dup=True))
            session.owed_answers.append((PUBREC, packet_id))

    # Acknowledgements from clients

    @precondition(anyone_owes)
    @rule(data=st.data(), everything=st.booleans())
    def acknowledge(self, data: st.DataObject, everything: bool) -> None:
        """Acknowledge one message, or in one write everything unacknowledged of one client."""
        session, peer = self.connected(data)
        owing = [*session.in_flight, *session.released]
        if not owing:
            return
        for each in owing if everything else [data.draw(st.sampled_from(owing), "what")]:
            if isinstance(each, int):
                peer.send(encoder.acknowledgement(self.reference.complete(session, each), each))
            else:
                peer.send(encoder.acknowledgement(self.reference.acknowledge(session, each), each.packet_id))

    @invariant()
    def everyone_has_what_is_owed(self) -> None:
        if hasattr(self, "reference"):
            self.reference.settle()

    @invariant()
    def limits_count_what_waits_once(self) -> None:
        broker = getattr(self, "broker", None)
        if broker is None:
            return

        def count() -> tuple[list[int], list[int]]:
            limits = broker.broker.context.limits
            waiting = [session.waiting for session in broker.view.sessions]
            return [limits.messages, limits.bytes], [sum(each) for each in zip((0, 0), *waiting, strict=True)]

        counted, waiting = broker.call(count)
        assert counted == waiting


class DurableSessions(Sessions):
    """The same with a store on disk, and a broker that is stopped and started again."""

    store_on_disk = True

    @rule()
    def restart(self) -> None:
        self.stop_broker()
        peers = [session.peer for session in self.reference.sessions.values() if session.peer is not None]
        self.reference.restart()
        for peer in peers:
            peer.close()
        self.start_broker()


@pytest.mark.parametrize("machine", [Sessions, DurableSessions])
@pytest.mark.timeout(3600 if _FULL else 180)  # each step waits for the disk
def test_sessions_behave_as_the_reference_does_in_every_story(machine: type[Sessions]) -> None:
    # A failure in a full run is shrunk as far as possible, which takes minutes.
    phases = set(Phase) - (set() if _FULL else {Phase.shrink, Phase.explain})
    examples, steps = (2000, 60) if _FULL else (20, 30)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, phases=phases)
    )
