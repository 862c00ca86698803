"""A client in very many shared subscriptions costs no more for each than one in few, and no message is left behind."""

from __future__ import annotations

import random
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from broker_peer import BrokerThread, StartBroker
from peer5 import Packet5, Peer5
from umqtt_broker.sessions.session import Session
from umqtt_broker.sessions.shared_queue import SharedQueue
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBLISH, SUBACK, UNSUBACK


def subscribe_groups(peer: Peer5, count: int) -> None:
    """Join `count` groups, all with the filter t."""
    peer.send(encoder.subscribe(1, *((b"$share/g%d/t" % number, 1) for number in range(count)), properties=b"\0"))
    peer.expect(SUBACK)


def test_joining_and_leaving_a_group_copies_nothing_of_the_others(start_broker: StartBroker) -> None:
    # Planted: the session's groups are a tuple, which each of them copies: 40,000 took 12 s.
    broker = start_broker(max_shared_subscriptions=20_010)

    def allocated(session: Session) -> list[int]:
        """Return the bytes that each of some groups takes while it joins or leaves."""
        router, taken = broker.broker.router, []
        tracemalloc.start()
        for number in range(5):
            name = b"$share/new/n%d" % number
            for step in (partial(router.subscribe, session, name, 1), partial(router.unsubscribe, session, name)):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                step()
                taken.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
        return taken

    with Peer5(broker.port) as peer:
        peer.connect5(b"member")
        subscribe_groups(peer, 20_000)
        session = broker.view.session(b"member")
        assert isinstance(session, Session)
        taken = broker.call(lambda: allocated(session))
    # A dictionary may grow once; 20,000 references take 160,000 bytes.
    assert sorted(taken)[-2] < 20_000


@pytest.mark.parametrize("store", [":memory:", "on disk"])
def test_an_acknowledgement_looks_only_at_groups_that_it_makes_room_for(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    # Planted: every acknowledgement visits every group; a group without messages stays among those that wait.
    broker = start_broker(store=store if store == ":memory:" else str(tmp_path / "broker.db"))
    visits = 0
    pump = SharedQueue.pump

    def counting(group: SharedQueue) -> None:
        nonlocal visits
        visits += 1
        pump(group)

    with Peer5(broker.port) as peer, Peer5(broker.port) as writer:
        peer.connect5(b"member", receive_maximum=1)
        writer.connect5(b"writer")
        subscribe_groups(peer, 300)
        writer.publish5(b"t", b"1", 1)
        writer.publish5(b"t", b"2", 1)
        monkeypatch.setattr(SharedQueue, "pump", counting)
        for _ in range(600):
            peer.receive_message()
        assert peer.flush() == []
        assert broker.call(lambda: broker.stats.queued) == 0
        # On disk, a message may first wait for its commit.
        assert visits < 600 * 4
        before = visits
        for _ in range(20):
            peer.publish5(b"other", b"", 1)
        assert visits == before


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", [":memory:", "on disk"])
def test_no_message_of_any_group_is_left_while_a_member_has_room(
    start_broker: StartBroker, tmp_path: Path, seed: int, store: str
) -> None:
    # Planted: members do not learn of a group's messages when they join; nor when a member gives messages back; nor of
    # the next message after a group was empty.
    print(f"seed {seed}")
    rng = random.Random(seed)
    broker = start_broker(store=store if store == ":memory:" else str(tmp_path / "broker.db"))
    groups = [b"$share/g%d/t" % number for number in range(2)]
    sent = 0
    got: list[bytes] = []
    with Peer5(broker.port) as writer, Peer5(broker.port) as keeper:
        writer.connect5(b"writer")
        # The groups do not end with their last other member, and the keeper, which is away, takes nothing.
        keeper.connect5(b"keeper", session_expiry_interval=1000)
        keeper.subscribe5(*((group, 1) for group in groups))
        keeper.disconnect()
        members: list[Peer5] = []
        for _ in range(200):
            action = rng.choice((0, 1, 2, 2, 2, 3))
            if action == 0 and len(members) < 4:
                member = Peer5(broker.port)
                member.connect5(b"m%d" % rng.randrange(1 << 30), receive_maximum=rng.randrange(1, 3))
                got += join(member, rng.sample(groups, rng.randrange(1, 3)))
                members.append(member)
            elif action == 1 and members:
                members.pop(rng.randrange(len(members))).reset()
            elif action == 2 and members:
                got += take(rng.choice(members))
            else:
                sent += 1
                writer.publish5(b"t", b"%d" % sent, 1)
            broker.wait_until(lambda: nothing_waits_for_room_that_is_there(broker))
        for member in members:
            member.reset()
        broker.wait_until(lambda: broker.stats.connections == 1)
        with Peer5(broker.port) as last:
            last.connect5(b"keeper", clean=False, receive_maximum=2)
            got += [last.receive_message().payload for _ in range(broker.call(lambda: waiting(broker)))]
            assert last.flush() == []
    assert set(got) == {b"%d" % number for number in range(1, sent + 1)}


def join(peer: Peer5, groups: list[bytes]) -> list[bytes]:
    """Join groups. Acknowledge the messages that come before the SUBACK, and return their payloads."""
    peer.send(encoder.subscribe(peer.next_id(), *((group, 1) for group in groups), properties=b"\0"))
    early: list[Packet5] = []
    while (packet := peer.receive()).kind != SUBACK:
        early.append(packet)
    return acknowledged(peer, early)


def take(peer: Peer5) -> list[bytes]:
    """Acknowledge everything that has come for a member, and return the payloads."""
    return acknowledged(peer, peer.flush())


def acknowledged(peer: Peer5, packets: list[Packet5]) -> list[bytes]:
    """Acknowledge the messages among the packets, and return their payloads."""
    found = [packet for packet in packets if packet.kind == PUBLISH]
    for packet in found:
        peer.send(encoder.acknowledgement(PUBACK, packet.packet_id))
    return [packet.payload for packet in found]


def nothing_waits_for_room_that_is_there(broker: BrokerThread) -> bool:
    """Return True if no group has both messages that wait and a member with room."""
    return not any(
        group.queued and any(member.messages_ahead(1) >= 0 for member in group.members)
        for group in broker.broker.router.shares
    )


def waiting(broker: BrokerThread) -> int:
    """Return how many messages of groups are not acknowledged."""
    return sum(group.queued + len(group.holders) for group in broker.broker.router.shares)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_the_subscriptions_of_a_client_that_has_gone_are_not_worked_off_although_nothing_is_read(
    start_broker: StartBroker, end: str
) -> None:
    # Planted: the end of a connection is noticed only when it is read, behind all that came before it.
    broker = start_broker()
    count = 100_000
    with Peer5(broker.port) as peer:
        peer.connect5(b"gone", session_expiry_interval=1000)
        filters = [(b"f/%d" % number, 0) for number in range(count)]
        peer.send(encoder.subscribe(1, *filters, properties=b"\0"))
        broker.wait_until(lambda: broker.stats.subscriptions)
        getattr(peer, end)()
    broker.wait_until(lambda: broker.stats.connections == 0)
    assert 0 < broker.call(lambda: broker.stats.subscriptions) < count


def test_a_client_joins_no_more_groups_than_it_may(start_broker: StartBroker) -> None:
    """Planted: a group that the client has joined already counts again; the limit is that of all clients together."""
    broker = start_broker(max_shared_subscriptions=3)
    for client_id in (b"one", b"other"):
        with Peer5(broker.port) as peer:
            peer.connect5(client_id)
            for number, code in ((0, 1), (1, 1), (2, 1), (3, 0x97), (1, 1), (4, 0x97)):
                assert peer.subscribe5((b"$share/g%d/t" % number, 1))[-1] == code, number
            assert peer.subscribe5((b"t", 1))[-1] == 1
            peer.send(encoder.unsubscribe(9, b"$share/g0/t", properties=b"\0"))
            peer.expect(UNSUBACK)
            assert peer.subscribe5((b"$share/g4/t", 1))[-1] == 1
