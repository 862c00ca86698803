"""Shared subscriptions: one queue for a group, from which its members take; nothing is lost when they go."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, Packet, Peer, StartBroker
from observed import ObservedBroker
from umqtt_broker import BrokerConfig, Listener, Permission, Rights
from umqtt_broker.store.base import DeliveryRow
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, UNSUBACK
from umqtt_testkit.waiting import eventually

Connect = Callable[..., Peer]
JOBS = b"$share/workers/jobs/#"


@pytest.fixture(params=[":memory:", "broker.db"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Provide each kind of store."""
    return request.param if request.param == ":memory:" else str(tmp_path / request.param)


def payloads(packets: list[Packet]) -> list[bytes]:
    """Return the payloads of the messages among packets."""
    return [packet.payload for packet in packets if packet.kind == PUBLISH]


def take(peer: Peer, count: int = 0, *, acknowledge: bool = True) -> list[bytes]:
    """Return the messages waiting for a peer, `count` at least, acknowledged unless told not to."""
    got: list[bytes] = []

    def on_packet(packet: Packet) -> None:
        if packet.kind == PUBLISH:
            got.append(packet.payload)
            if acknowledge and packet.qos:
                peer.send(encoder.acknowledgement(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        elif packet.kind == PUBREL:
            peer.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))

    while len(got) < count:
        on_packet(peer.receive())
    # Packets caused by the acknowledgements of one read may come after the answer to the PINGREQ in it.
    quiet = 0
    while quiet < 2:
        packets = peer.flush()
        quiet = 0 if packets else quiet + 1
        for packet in packets:
            on_packet(packet)
    return got


def send(peer: Peer, first: int, count: int, qos: int = 1, topic_name: bytes = b"jobs/a") -> None:
    """Publish numbers in one write, and wait until the broker has them all."""
    numbers = range(first, first + count)
    peer.send(b"".join(encoder.publish(topic_name, b"%d" % number, qos, number) for number in numbers))
    for number in numbers:
        if qos:
            peer.expect(PUBACK if qos == 1 else PUBREC, number)
    for number in numbers if qos == 2 else ():
        peer.send(encoder.acknowledgement(PUBREL, number))
        peer.expect(PUBCOMP, number)
    if not qos:
        assert peer.flush() == []


def leave(broker: BrokerThread, peer: Peer) -> None:
    """Drop a connection, and wait until the broker has seen it."""
    before = broker.call(lambda: broker.stats.connections)
    peer.reset()
    broker.wait_until(lambda: broker.stats.connections < before)


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# Names


@pytest.mark.parametrize(
    "topic_filter", [b"$share", b"$share/", b"$share/g", b"$share/g/", b"$share//x", b"$share/+/x", b"$share/#"]
)
def test_what_is_no_shared_subscription_is_denied_and_the_client_stays(peer: Connect, topic_filter: bytes) -> None:
    client = peer(b"a")
    assert client.subscribe(topic_filter, 1) == 0x80
    packet_id = client.next_id()
    client.send(encoder.unsubscribe(packet_id, topic_filter))
    client.expect(UNSUBACK, packet_id)
    assert client.subscribe(b"$share/g/x", 1) == 1


def test_a_name_that_only_begins_like_one_is_an_ordinary_filter(peer: Connect) -> None:
    one, other = peer(b"a"), peer(b"b")
    for client in (one, other):
        assert client.subscribe(b"$shared/g/x", 0) == 0
    peer(b"p").publish(b"$shared/g/x", b"1")
    assert payloads(one.flush()) == payloads(other.flush()) == [b"1"]


# Who gets what


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_all_get_their_share(peer: Connect, qos: int) -> None:
    members = [peer(b"m%d" % number, clean_session=number == 0) for number in range(3)]
    for member in members:
        assert member.subscribe(JOBS, qos) == qos
    send(peer(b"p"), 1, 90, qos)
    got = [take(member) for member in members]
    assert sorted(int(payload) for each in got for payload in each) == list(range(1, 91))
    assert all(len(each) >= 10 for each in got), [len(each) for each in got]
    # In order, for each single member.
    assert all(each == sorted(each, key=int) for each in got)


def test_groups_filters_and_plain_subscriptions_are_each_served(peer: Connect) -> None:
    one, other = peer(b"a"), peer(b"b")
    for topic_filter in (JOBS, b"$share/others/jobs/#", b"$share/workers/jobs/a", b"jobs/+"):
        one.subscribe(topic_filter, 1)
    other.subscribe(b"$share/others/jobs/#", 1)
    send(peer(b"p"), 1, 10)
    mine, theirs = take(one), take(other)
    # Two for workers and the plain subscription are only mine; the group of both gives to the one with less in
    # flight.
    assert {mine.count(payload) for payload in numbers(1, 10)} == {3}
    assert theirs == numbers(1, 10)


def test_a_member_gets_messages_at_its_own_qos(peer: Connect) -> None:
    members = [peer(b"m%d" % qos) for qos in range(3)]
    for qos, member in enumerate(members):
        member.subscribe(JOBS, qos)
    publisher = peer(b"p")
    for number in range(1, 13):
        publisher.publish(b"jobs/%d" % number, b"x" * 200, 2)
    got = 0
    for qos, member in enumerate(members):
        packets = member.flush()
        assert packets and {packet.qos for packet in packets} == {qos}
        assert all(packet.payload == b"x" * 200 and packet.topic_name.startswith(b"jobs/") for packet in packets)
        got += len(packets)
    assert got == 12


def test_retained_messages_are_not_sent_to_a_new_member(peer: Connect) -> None:
    peer(b"p").publish(b"jobs/a", b"kept", 1, retain=True)
    member = peer(b"m")
    member.subscribe(JOBS, 1)
    assert member.flush() == []
    peer(b"q").publish(b"jobs/a", b"new", 1, retain=True)
    packet = member.receive_message()
    assert (packet.payload, packet.retain) == (b"new", False)


@pytest.mark.parametrize("topic_filter", [b"$share/g/#", b"$share/g/+/x"])
def test_wildcards_of_a_group_do_not_match_names_that_begin_with_dollar(peer: Connect, topic_filter: bytes) -> None:
    member = peer(b"m")
    member.subscribe(topic_filter, 1)
    publisher = peer(b"p")
    publisher.publish(b"$own/x", b"hidden", 1)
    publisher.publish(b"own/x", b"seen", 1)
    assert payloads(member.flush()) == [b"seen"]


# Balance


def test_a_member_that_never_acknowledges_holds_back_what_it_has_and_nothing_else(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(max_inflight_messages=20)
    with Peer(broker.port) as slow, Peer(broker.port) as fast, Peer(broker.port) as publisher:
        for client, client_id in ((slow, b"slow"), (fast, b"fast"), (publisher, b"p")):
            client.connect(client_id)
        slow.subscribe(JOBS, 1)
        fast.subscribe(JOBS, 1)
        got = 0
        for number in range(1, 201):
            send(publisher, number, 1)
            got += len(take(fast))
        # Least in flight: with one message on its way the slow one is never the better choice.
        assert got >= 198, got
        assert len(take(slow, acknowledge=False)) == 200 - got
        send(publisher, 201, 100)
        got += len(take(fast))
        assert got >= 300 - 20


def test_what_nobody_has_room_for_waits_in_order_and_comes_with_the_acknowledgements(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(max_inflight_messages=5)
    with Peer(broker.port) as one, Peer(broker.port) as other, Peer(broker.port) as publisher:
        for client, client_id in ((one, b"a"), (other, b"b"), (publisher, b"p")):
            client.connect(client_id)
        one.subscribe(JOBS, 1)
        other.subscribe(JOBS, 1)
        send(publisher, 1, 100)
        assert broker.call(lambda: broker.stats.queued) == 90
        got = [take(one, 95), take(other)]
        assert len(got[0]) == 95 and got[0] == sorted(got[0], key=int)
        assert sorted(int(payload) for each in got for payload in each) == list(range(1, 101))


def test_room_that_other_messages_leave_is_used(start_broker: StartBroker) -> None:
    broker = start_broker(max_inflight_messages=2)
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m")
        publisher.connect(b"p")
        member.subscribe(b"plain", 1)
        member.subscribe(JOBS, 1)
        send(publisher, 1, 2, topic_name=b"plain")
        send(publisher, 3, 2)
        plain = [member.receive_message(acknowledge=False) for _ in range(2)]
        assert member.flush() == []
        member.send(b"".join(encoder.acknowledgement(PUBACK, packet.packet_id) for packet in plain))
        assert take(member, 2) == numbers(3, 2)


# Departures


@pytest.mark.parametrize("clean_session", [False, True])
@pytest.mark.parametrize("how", ["drop", "disconnect", "taken over"])
def test_what_a_departed_member_left_goes_to_the_others_first_in_order_with_dup(
    broker: BrokerThread, peer: Connect, how: str, clean_session: bool
) -> None:
    gone, stays, publisher = peer(b"gone", clean_session=clean_session), peer(b"stays"), peer(b"p")
    gone.subscribe(JOBS, 1)
    send(publisher, 1, 20)
    assert len(take(gone, acknowledge=False)) == 20
    stays.subscribe(JOBS, 1)
    if how == "drop":
        leave(broker, gone)
    elif how == "disconnect":
        gone.disconnect()
    else:
        # The new connection takes its turn among the others.
        peer(b"gone", clean_session=True)
        gone.wait_closed()
    send(publisher, 21, 5)
    packets = [packet for packet in stays.flush() if packet.kind == PUBLISH]
    assert [packet.payload for packet in packets] == numbers(1, 25)
    assert [packet.dup for packet in packets] == [True] * 20 + [False] * 5
    assert len({packet.packet_id for packet in packets}) == 25


def test_what_two_departed_members_left_is_put_back_in_order(broker: BrokerThread, peer: Connect) -> None:
    members = [peer(b"a", clean_session=False), peer(b"b", clean_session=False)]
    for member in members:
        member.subscribe(JOBS, 1)
    send(peer(b"p"), 1, 20)
    for member in members:
        assert len(take(member, acknowledge=False)) == 10
    leave(broker, members[0])
    assert take(members[1], 10, acknowledge=False) == [b"%d" % number for number in range(1, 20, 2)]
    leave(broker, members[1])
    assert take(peer(b"a", clean_session=False), 20) == numbers(1, 20)


def test_what_departed_members_left_is_counted_once(start_broker: StartBroker, store: str) -> None:
    broker = start_broker(store=store, max_inflight_messages=5, max_queued_messages=100)
    limits = broker.broker.context.limits
    assert limits is not None
    members = [Peer(broker.port) for _ in range(3)]
    for number, member in enumerate(members):
        member.connect(b"m%d" % number, clean_session=False)
        member.subscribe(JOBS, 1)
    with Peer(broker.port) as publisher:
        publisher.connect(b"p")
        send(publisher, 1, 20)
    for member in members:
        leave(broker, member)
    figures = broker.call(lambda: (limits.messages, limits.bytes, broker.stats.queued))
    assert figures == (20, 9 + 2 * 11, 20)


def test_who_unsubscribes_may_finish_what_it_has(broker: BrokerThread, peer: Connect) -> None:
    """Allowed by [MQTT-3.10.4-3]; what it does not finish goes to the others when it leaves."""
    one, stays = peer(b"a"), peer(b"b")
    one.subscribe(JOBS, 1)
    send(peer(b"p"), 1, 4)
    packets = [one.receive_message(acknowledge=False) for _ in range(4)]
    stays.subscribe(JOBS, 1)
    one.send(encoder.unsubscribe(99, JOBS))
    one.expect(UNSUBACK, 0x63)
    one.send(encoder.acknowledgement(PUBACK, packets[1].packet_id))
    assert one.flush() == [] and stays.flush() == []
    leave(broker, one)
    assert take(stays, 3) == [b"1", b"3", b"4"]


@pytest.mark.parametrize("rejoin", [False, True])
def test_a_message_at_qos_2_stays_with_the_session_that_it_was_sent_to(
    broker: BrokerThread, peer: Connect, rejoin: bool
) -> None:
    first, stays = peer(b"first", clean_session=False), peer(b"stays", clean_session=False)
    first.subscribe(JOBS, 2)
    send(peer(b"p"), 1, 6, 2)
    packets = [first.receive_message(acknowledge=False) for _ in range(6)]
    for packet in packets[:3]:
        first.send(encoder.acknowledgement(PUBREC, packet.packet_id))
        first.expect(PUBREL, packet.packet_id)
    stays.subscribe(JOBS, 2)
    leave(broker, first)
    assert stays.flush() == []
    if rejoin:
        again = peer(b"first", clean_session=False)
        for packet in packets[:3]:
            again.expect(PUBREL, packet.packet_id)
        resent = [again.receive() for _ in range(3)]
        assert [(packet.payload, packet.packet_id, packet.dup) for packet in resent] == [
            (packet.payload, packet.packet_id, True) for packet in packets[3:]
        ]
    assert stays.flush() == []


def test_with_all_members_away_the_queue_waits_for_the_first_that_returns(broker: BrokerThread, peer: Connect) -> None:
    for client_id in (b"a", b"b"):
        member = peer(client_id, clean_session=False)
        member.subscribe(JOBS, 1)
        member.disconnect()
    send(peer(b"p"), 1, 50)
    assert broker.call(lambda: broker.stats.queued) == 50
    assert take(peer(b"b", clean_session=False), 50) == numbers(1, 50)
    assert take(peer(b"a", clean_session=False)) == []
    assert broker.call(lambda: broker.stats.queued) == 0


def test_qos_0_is_dropped_and_counted_when_no_member_is_there(broker: BrokerThread, peer: Connect) -> None:
    member = peer(b"a", clean_session=False)
    member.subscribe(JOBS, 1)
    member.disconnect()
    send(peer(b"p"), 1, 3, 0)
    assert take(peer(b"a", clean_session=False)) == []
    assert broker.call(lambda: broker.stats.dropped_qos0_offline) == 3


def test_with_its_last_member_a_group_ends_and_what_waited_is_counted(start_broker: StartBroker, store: str) -> None:
    broker = start_broker(store=store, max_inflight_messages=3)
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        publisher.connect(b"p")
        member.subscribe(JOBS, 1)
        send(publisher, 1, 10)
        packets = [member.receive_message(acknowledge=False) for _ in range(3)]
        member.send(encoder.unsubscribe(99, JOBS))
        member.expect(UNSUBACK, 0x63)
        router, stats = broker.broker.router, broker.stats
        assert broker.call(lambda: (len(router.shares), router.subscriptions.node_count())) == (0, 0)
        assert broker.call(lambda: (stats.dropped_share_ended, stats.queued, stats.shared_subscriptions)) == (
            7,
            0,
            0,
        )
        # What is in flight is its own now: it is finished here, or after the next connect.
        member.send(encoder.acknowledgement(PUBACK, packets[0].packet_id))
        member.flush()
        leave(broker, member)
        with Peer(broker.port) as again:
            assert again.connect(b"m", clean_session=False)
            resent = [again.receive_message() for _ in range(2)]
            assert [(one.payload, one.dup) for one in resent] == [(b"2", True), (b"3", True)]
            assert again.flush() == []


def test_groups_are_listed_counted_and_told_apart_from_sessions(tmp_path: Path) -> None:
    with (
        ObservedBroker(tmp_path, max_inflight_messages=2, sys_interval=0) as broker,
        Peer(broker.port) as member,
        Peer(broker.port) as away,
        Peer(broker.port) as publisher,
    ):
        away.connect(b"away", clean_session=False)
        away.subscribe(JOBS, 1)
        leave(broker, away)
        member.connect(b"m")
        member.subscribe(JOBS, 2)
        member.subscribe(b"jobs/b", 1)
        publisher.connect(b"p")
        send(publisher, 1, 7)
        (group,) = broker.get("/api/shared")["groups"]
        assert (group["name"], group["qos"], group["member_count"]) == (JOBS.decode(), 2, 2)
        assert (group["queued"], group["queued_bytes"], group["in_flight"]) == (5, 5, 2)
        assert {(each["client_id"], each["connected"], each["qos"]) for each in group["members"]} == {
            ("away", False, 1),
            ("m", True, 2),
        }
        listed = broker.get("/api/subscriptions?topic=jobs/b")
        assert [each["client_id"] for each in listed["subscribers"]] == ["m"]
        assert [each["name"] for each in listed["groups"]] == [JOBS.decode()]
        assert broker.get("/api/broker")["messages"]["queued"] == 5
        assert broker.get("/api/sessions/m")["session"]["subscriptions"] == 2
        stats = broker.stats
        assert broker.call(lambda: (stats.subscriptions, stats.shared_subscriptions, stats.queued)) == (3, 2, 5)


def test_a_session_that_expires_leaves_its_group(start_broker: StartBroker) -> None:
    broker = start_broker(session_expiry=60)
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        member.subscribe(JOBS, 1)
        publisher.connect(b"p")
        send(publisher, 1, 3)
        leave(broker, member)
        assert broker.call(lambda: broker.stats.queued) == 3

        def wait_an_hour() -> None:
            now = broker.broker.context.expiry.clock
            broker.broker.context.expiry.clock = lambda: now() + 3600
            broker.broker.expire()

        broker.call(wait_an_hour)
        stats = broker.stats
        assert broker.call(lambda: (stats.dropped_share_ended, stats.queued, len(broker.view.groups))) == (
            3,
            0,
            0,
        )


# Rights, limits, expiry, mount points


class _Reads(Rights):
    def __init__(self, what: bytes) -> None:
        self.what = what

    def may_read(self, topic_name: bytes) -> bool:
        return topic_name.startswith(self.what)

    def grant(self, topic_filter: bytes, qos: int) -> int:
        assert topic_filter == b"jobs/#"
        return 0x80 if self.what == b"nothing" else qos


class _ByName(Permission):
    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        del username
        return None if client_id == b"p" else _Reads(client_id)


def test_a_message_goes_only_to_a_member_that_may_read_it(start_broker: StartBroker, store: str) -> None:
    broker = start_broker(store=store, permission=_ByName())
    with Peer(broker.port) as a, Peer(broker.port) as b, Peer(broker.port) as none, Peer(broker.port) as publisher:
        a.connect(b"jobs/a", clean_session=False)
        b.connect(b"jobs/b")
        none.connect(b"nothing")
        publisher.connect(b"p")
        assert [each.subscribe(JOBS, 1) for each in (a, b, none)] == [1, 1, 0x80]
        for number, name in enumerate((b"jobs/a/1", b"jobs/b/2", b"jobs/a/3", b"jobs/c/4", b"jobs/b/5"), 1):
            send(publisher, number, 1, topic_name=name)
        assert (take(a), take(b)) == ([b"1", b"3"], [b"2", b"5"])
        # Nobody who may read it is connected: it waits, and messages for others pass it.
        leave(broker, a)
        send(publisher, 6, 2, topic_name=b"jobs/a/x")
        send(publisher, 8, 2, topic_name=b"jobs/b/x")
        assert take(b) == numbers(8, 2)
        a = Peer(broker.port)
        a.connect(b"jobs/a", clean_session=False)
        assert take(a, 2) == numbers(6, 2)
        a.close()


def test_at_its_limit_a_group_slows_publishers_and_lets_them_go_on(start_broker: StartBroker) -> None:
    broker = start_broker(max_queued_messages=5)
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        member.subscribe(JOBS, 1)
        member.disconnect()
        publisher.connect(b"p")
        for number in range(1, 21):
            publisher.send(encoder.publish(b"jobs/a", b"%d" % number, 1, number))
        broker.wait_until(lambda: broker.stats.publishers_held == 1)
        assert broker.call(lambda: broker.stats.queued) <= 20
        with Peer(broker.port) as again:
            again.connect(b"m", clean_session=False)
            got: list[bytes] = []
            while len(got) < 20:
                got.append(again.receive_message().payload)
            assert got == numbers(1, 20)


def test_at_its_limit_a_group_drops_and_counts_where_the_user_said_so(start_broker: StartBroker) -> None:
    broker = start_broker(max_queued_messages=5, at_queue_limit="drop")
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        member.subscribe(JOBS, 1)
        leave(broker, member)
        publisher.connect(b"p")
        send(publisher, 1, 8)
        assert broker.call(lambda: broker.stats.dropped_queue_full) == 3
        with Peer(broker.port) as again:
            again.connect(b"m", clean_session=False)
            assert take(again, 5) == numbers(1, 5)


def test_messages_too_old_are_dropped_and_counted(start_broker: StartBroker) -> None:
    broker = start_broker(message_expiry=60)
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        member.subscribe(JOBS, 1)
        leave(broker, member)
        publisher.connect(b"p")
        send(publisher, 1, 3)

        def wait_an_hour() -> None:
            now = broker.broker.context.expiry.clock
            broker.broker.context.expiry.clock = lambda: now() + 3600
            broker.broker.expire()

        broker.call(wait_an_hour)
        send(publisher, 4, 1)
        with Peer(broker.port) as again:
            again.connect(b"m", clean_session=False)
            assert take(again, 1) == [b"4"]
        assert broker.call(lambda: broker.stats.dropped_expired) == 3


def test_a_group_that_ends_while_a_page_of_its_queue_is_read_is_counted_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    path = str(tmp_path / "broker.db")
    broker = start_broker(
        store=path, message_expiry=60, max_inflight_messages=2, max_queued_in_memory=3, max_queued_messages=100
    )
    limits, stats, context = broker.broker.context.limits, broker.stats, broker.broker.context
    assert limits is not None
    pages: list[Callable[[], None]] = []
    load_page = broker.broker.store.load_page

    def load_slowly(number: int, after: int, limit: int, deliver: Callable[[list[DeliveryRow]], None]) -> None:
        load_page(number, after, limit, lambda rows: pages.append(lambda: deliver(rows)))

    broker.broker.store.load_page = load_slowly
    with Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"m", clean_session=False)
        member.subscribe(JOBS, 1)
        publisher.connect(b"p")
        send(publisher, 1, 20)
        packets = [member.receive_message(acknowledge=False) for _ in range(2)]
        member.send(encoder.acknowledgement(PUBACK, packets[0].packet_id))
        broker.wait_until(lambda: bool(pages))
        member.send(encoder.unsubscribe(99, JOBS))
        while member.receive().kind != UNSUBACK:
            pass

        def read_an_hour_later() -> None:
            now = context.expiry.clock
            context.expiry.clock = lambda: now() + 3600
            pages[0]()

        broker.call(read_an_hour_later)
        figures = broker.call(lambda: (stats.dropped_share_ended, stats.dropped, limits.messages, limits.bytes))
        assert figures == (17, 17, 0, 0)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT count(*) FROM share").fetchone() == (0,)
            # What is in flight is the member's own; the rest is removed in small steps.
            eventually(lambda: database.execute("SELECT count(*) FROM delivery").fetchone() == (2,))


def test_groups_behind_different_mount_points_share_nothing(start_broker: StartBroker) -> None:
    broker = start_broker(listeners=(Listener(port=0, mount_point=b"site/"), Listener(port=0)))
    ports = broker.view.listening_ports
    with Peer(ports[0]) as inside, Peer(ports[1]) as outside, Peer(ports[0]) as publisher:
        inside.connect(b"m")
        outside.connect(b"m")
        publisher.connect(b"p")
        assert inside.subscribe(b"$share/g/x/+", 1) == 1
        assert outside.subscribe(b"$share/g/site/x/+", 1) == 1
        publisher.publish(b"x/1", b"both", 1)
        assert [inside.receive_message().topic_name, outside.receive_message().topic_name] == [b"x/1", b"site/x/1"]
        inside.send(encoder.unsubscribe(99, b"$share/g/x/+"))
        inside.expect(UNSUBACK, 0x63)
        assert broker.call(lambda: len(broker.view.groups)) == 1


# Restarts


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_keeps_the_queue_what_was_in_flight_and_the_order(
    start_broker: StartBroker, tmp_path: Path, qos: int
) -> None:
    settings: dict[str, Any] = {
        "store": str(tmp_path / "broker.db"),
        "max_inflight_messages": 4,
        "max_queued_in_memory": 8,
    }
    with on_disk(settings) as broker, Peer(broker.port) as member, Peer(broker.port) as publisher:
        member.connect(b"a", clean_session=False)
        member.subscribe(JOBS, qos)
        publisher.connect(b"p")
        send(publisher, 1, 60, qos)
        in_flight = [member.receive_message(acknowledge=False) for _ in range(4)]
        assert payloads(in_flight) == numbers(1, 4)
    with on_disk(settings) as broker, Peer(broker.port) as member, Peer(broker.port) as other:
        assert broker.call(lambda: broker.stats.queued) == 60
        other.connect(b"b")
        other.subscribe(JOBS, qos)
        wanted = numbers(1, 60) if qos == 1 else numbers(5, 56)
        assert take(other, len(wanted)) == wanted
        assert member.connect(b"a", clean_session=False)
        wanted = [] if qos == 1 else numbers(1, 4)
        assert take(member, len(wanted)) == wanted
        assert broker.call(lambda: broker.stats.queued) == 0


def on_disk(settings: dict[str, Any]) -> BrokerThread:
    return BrokerThread(BrokerConfig(port=0, sys_interval=0, **settings))
