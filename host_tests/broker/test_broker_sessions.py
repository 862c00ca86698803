"""Sessions: what is kept, what comes again and in which order, takeover, slow readers. On both stores."""

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from broker_peer import BrokerThread, Packet, Peer
from umqtt_broker import BrokerConfig
from umqtt_broker.sessions import durable
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

MakePeer = Callable[..., Peer]


def receive_all(peer: Peer, count: int) -> list[Packet]:
    """Receive and complete `count` messages."""
    return [peer.receive_message() for _ in range(count)]


def test_session_present_says_whether_there_was_a_session(broker: BrokerThread, peer: MakePeer) -> None:
    found = []
    for clean_session in (False, False, True, False, False, True, True):
        client = peer(b"client", clean_session=clean_session)
        found.append(client.session_present)
        client.disconnect()
    assert found == [False, True, False, False, True, False, False]
    broker.wait_until(lambda: broker.stats.connections == 0)
    assert broker.call(lambda: broker.stats.sessions) == 0


def test_a_clean_session_takes_everything_with_it(broker: BrokerThread, peer: MakePeer) -> None:
    first = peer(b"client", clean_session=False)
    first.subscribe(b"a", 1)
    first.disconnect()
    publisher = peer(b"publisher")
    publisher.publish(b"a", b"1", 1)
    client = peer(b"client", clean_session=True)
    publisher.publish(b"a", b"2", 1)
    assert client.flush() == []
    assert broker.call(lambda: (broker.stats.queued, broker.stats.subscriptions)) == (0, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_an_absent_client_wait_in_order(broker: BrokerThread, peer: MakePeer, qos: int) -> None:
    absent = peer(b"absent", clean_session=False)
    absent.subscribe(b"a/#", qos)
    absent.disconnect()
    publisher = peer(b"publisher")
    for number in range(50):
        publisher.publish(b"a/%d" % (number % 3), b"%d" % number, 2)
    publisher.publish(b"a/0", b"not kept", 0)
    assert broker.call(lambda: (broker.stats.queued, broker.stats.dropped)) == (50, 1)
    absent = peer(b"absent", clean_session=False)
    messages = receive_all(absent, 50)
    assert [int(message.payload) for message in messages] == list(range(50))
    assert not any(message.dup for message in messages)
    assert {message.qos for message in messages} == {qos}


@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_come_first_with_dup_and_their_packet_identifiers(
    broker: BrokerThread, peer: MakePeer, qos: int
) -> None:
    client, publisher = peer(b"client", clean_session=False), peer(b"publisher")
    client.subscribe(b"a", qos)
    for number in range(10):
        publisher.publish(b"a", b"%d" % number, qos)
    sent = [client.expect(PUBLISH) for _ in range(10)]
    for message in (sent[0], sent[4]):
        client.send(encoder.acknowledgement(PUBACK if qos == 1 else PUBREC, message.packet_id))
    for packet in client.flush():
        client.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
    assert client.flush() == []
    client.reset()
    broker.wait_until(lambda: broker.stats.connections == 1)
    for number in range(10, 15):
        publisher.publish(b"a", b"%d" % number, qos)
    client = peer(b"client", clean_session=False)
    again = [client.expect(PUBLISH) for _ in range(13)]
    unacknowledged = [message for message in sent if message not in (sent[0], sent[4])]
    assert [(message.payload, message.packet_id) for message in again[:8]] == [
        (message.payload, message.packet_id) for message in unacknowledged
    ]
    assert [message.dup for message in again] == [True] * 8 + [False] * 5
    assert [int(message.payload) for message in again[8:]] == list(range(10, 15))


def test_after_pubrec_only_pubrel_comes_again_in_the_order_of_the_pubrecs(peer: MakePeer) -> None:
    client, publisher = peer(b"client", clean_session=False), peer(b"publisher")
    client.subscribe(b"a", 2)
    for number in range(4):
        publisher.publish(b"a", b"%d" % number, 2)
    sent = [client.expect(PUBLISH) for _ in range(4)]
    order = [sent[2].packet_id, sent[0].packet_id, sent[1].packet_id]
    for packet_id in order:
        client.send(encoder.acknowledgement(PUBREC, packet_id))
        client.expect(PUBREL, packet_id)
    client.reset()
    client = peer(b"client", clean_session=False)
    packets = [client.receive() for _ in range(4)]
    assert [(packet.kind, packet.packet_id) for packet in packets] == [
        *((PUBREL, packet_id) for packet_id in order),
        (PUBLISH, sent[3].packet_id),
    ]
    assert packets[3].dup


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_leaving_and_returning_under_load_loses_nothing_and_keeps_the_order(
    peer: MakePeer, qos: int, seed: int
) -> None:
    """A steady stream; the subscriber leaves about every 50 messages, some of them unacknowledged.

    At QoS 2 the subscriber keeps packet identifiers as section 4.3.3 requires of a receiver; then nothing comes
    twice.
    """
    rng = random.Random(seed)
    total, window = 600, 20
    publisher = peer(b"publisher")
    client = peer(b"client", clean_session=False)
    client.subscribe(b"stream", qos)
    published = completed = 0
    received: list[tuple[int, bool]] = []
    seen: set[int] = set()
    known_ids: set[int] = set()

    def publish_some(count: int) -> None:
        nonlocal published, completed
        for _ in range(min(count, total - published)):
            published += 1
            publisher.send(encoder.publish(b"stream", b"%d" % published, qos, published))
        while published - completed > window:
            packet = publisher.receive()
            if packet.kind == PUBREC:
                publisher.send(encoder.acknowledgement(PUBREL, packet.packet_id))
            else:
                completed += 1

    def receive_one(acknowledge: bool) -> None:
        packet = client.receive()
        if packet.kind == PUBREL:
            known_ids.discard(packet.packet_id)
            client.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
            return
        assert packet.qos == qos
        if packet.packet_id not in known_ids:
            received.append((int(packet.payload), packet.dup))
            seen.add(int(packet.payload))
            if qos == 2:
                known_ids.add(packet.packet_id)
        if acknowledge:
            client.send(encoder.acknowledgement(PUBACK if qos == 1 else PUBREC, packet.packet_id))

    while len(seen) < total:
        publish_some(rng.randint(1, 40))
        unacknowledged = rng.choice([0, 3, 10])
        for left in range(rng.randint(1, 60), 0, -1):
            if len(seen) == published:
                break
            receive_one(acknowledge=left > unacknowledged)
        client.reset()
        publish_some(rng.randint(0, 20))
        client = peer(b"client", clean_session=False)
        assert client.session_present
    first_time: list[int] = []
    for number, dup in received:
        if not first_time or number > first_time[-1]:
            first_time.append(number)
        else:
            assert dup and qos == 1, (seed, number)
    assert first_time == list(range(1, total + 1))


def test_a_takeover_closes_the_old_connection_and_its_end_never_removes_the_new_one(
    broker: BrokerThread, peer: MakePeer
) -> None:
    publisher = peer(b"publisher")
    for clean_session in (True, False):
        old = peer(b"client", clean_session=clean_session)
        for number in range(20):
            new = peer(b"client", clean_session=clean_session)
            new.subscribe(b"a", 1)
            if number % 2:
                old.close()
            else:
                old.wait_closed()
            publisher.publish(b"a", b"%d" % number, 1)
            assert int(new.receive_message().payload) == number
            old = new
        assert broker.call(lambda: len(broker.view.sessions)) == 2
        old.disconnect()
    assert broker.call(lambda: broker.stats.takeovers) == 40


def test_a_packet_identifier_in_use_is_skipped_when_the_numbers_wrap(start_broker) -> None:
    broker = start_broker(max_inflight_messages=500)
    with Peer(broker.port) as client, Peer(broker.port) as publisher:
        client.connect(b"client")
        publisher.connect(b"publisher")
        client.subscribe(b"a", 1)
        used: list[int] = []
        total = 65535 + 300
        batch = b"".join(encoder.publish(b"a", b"", 1, 1) for _ in range(300))
        kept = 0
        for _ in range(0, total, 300):
            publisher.send(batch)
            acknowledgements = bytearray()
            for _ in range(300):
                message = client.expect(PUBLISH)
                used.append(message.packet_id)
                if not kept:
                    kept = message.packet_id
                else:
                    acknowledgements += encoder.acknowledgement(PUBACK, message.packet_id)
            client.send(bytes(acknowledgements))
        assert used.count(kept) == 1
        assert set(used) == set(range(1, 65536))


def test_a_long_queue_stays_on_disk_and_drains_in_order_while_more_is_published(tmp_path, start_broker) -> None:
    broker = start_broker(store=str(tmp_path / "broker.db"), max_queued_in_memory=20, max_inflight_messages=10)
    with Peer(broker.port) as publisher, Peer(broker.port) as client:
        publisher.connect(b"publisher")
        client.connect(b"client", clean_session=False)
        client.subscribe(b"a", 1)
        client.disconnect()
        for number in range(1, 4001):
            publisher.send(encoder.publish(b"a", b"%d" % number, 1, number))
            if number % 500 == 0:
                publisher.flush()
        session = broker.view.session(b"client")
        assert broker.call(lambda: (len(session.queue), session.queued)) == (20, 4000)
        with Peer(broker.port) as client:
            assert client.connect(b"client", clean_session=False)
            messages = []
            for number in range(4001, 6001):
                publisher.send(encoder.publish(b"a", b"%d" % number, 1, number))
                messages += receive_all(client, 3)
            assert [int(message.payload) for message in messages] == list(range(1, 6001))
            assert not any(message.dup for message in messages)
            client.flush()
            assert broker.call(lambda: session.queued) == 0
            assert broker.call(lambda: len(session.queue)) == 0


@pytest.mark.parametrize("is_there", [False, True])
def test_a_queue_of_large_messages_stays_on_disk(tmp_path, start_broker, monkeypatch, is_there: bool) -> None:
    """Either the client is away, or it does not read. Planted: a bound of queue or page that counts only messages."""
    monkeypatch.setattr(durable, "_MOST_IN_MEMORY", 256 * 1024)
    broker = start_broker(store=str(tmp_path / "broker.db"), max_inflight_messages=4)
    size, total = 16 * 1024, 300
    with Peer(broker.port) as publisher, ExitStack() as stack:
        publisher.connect(b"publisher")
        client = stack.enter_context(Peer(broker.port, receive_buffer=4096))
        client.connect(b"client", clean_session=False)
        client.subscribe(b"a", 1)
        if not is_there:
            client.disconnect()
        session = broker.view.session(b"client")
        in_memory = []

        def look() -> None:
            in_memory.append(broker.call(lambda: sum(len(entry[4]) for entry in session.queue)))

        for number in range(1, total + 1):
            publisher.publish(b"a", b"%08d" % number * (size // 8), 1)
            if number % 10 == 0:
                look()
        assert broker.call(lambda: session.queued_bytes) >= (total - 4) * size
        if not is_there:
            client = stack.enter_context(Peer(broker.port))
            assert client.connect(b"client", clean_session=False)
        for number in range(1, total + 1):
            assert client.receive_message().payload[:8] == b"%08d" % number
            look()
        client.flush()
        # A page may come while half of one is left, and a message is not cut.
        assert 128 * 1024 < max(in_memory) <= 2 * 256 * 1024 + size
        assert broker.call(lambda: (session.queued, session.queued_bytes)) == (0, 0)


def test_a_slow_reader_loses_only_qos_0_and_that_is_counted(start_broker) -> None:
    broker = start_broker(max_output_buffer=65536, max_inflight_messages=50)
    with Peer(broker.port, receive_buffer=4096) as slow, Peer(broker.port) as publisher:
        slow.connect(b"slow")
        publisher.connect(b"publisher")
        slow.subscribe(b"a", 1)
        filler = bytes(8192)
        reliable = 0
        while broker.call(lambda: broker.stats.dropped_qos0_slow) < 200:
            publisher.send(encoder.publish(b"a", filler, 0) * 20)
            reliable += 1
            publisher.publish(b"a", b"%d" % reliable, 1)
        stats = broker.call(broker.stats.as_dict)
        received = []
        lost = 0
        total = 20 * reliable
        while len(received) < reliable:
            message = slow.receive_message()
            if message.qos:
                received.append(int(message.payload))
            else:
                total -= 1
        lost = total - sum(1 for packet in slow.flush() if packet.kind == PUBLISH)
        assert received == list(range(1, reliable + 1))
        assert lost == stats["dropped_qos0_slow"] == stats["dropped"]


def test_a_client_that_never_reads_its_acknowledgements_is_not_read_from_for_ever(start_broker) -> None:
    broker = start_broker(max_output_buffer=1024)
    with Peer(broker.port, receive_buffer=4096) as peer:
        peer.connect(b"deaf")
        batch = encoder.publish(b"nobody", b"", 1, 1) * 2000
        peer.socket.setblocking(False)
        (connection,) = broker.view.connections
        # Otherwise the kernel buffers a million acknowledgements.
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sent = 0

        def is_read_no_more() -> bool:
            nonlocal sent
            with suppress(BlockingIOError):
                while True:
                    sent += peer.socket.send(batch[sent % len(batch) :])
                    assert sent < 200_000_000, "the broker reads without bound"
            return not broker.call(connection.transport.is_reading)

        eventually(is_read_no_more)
        peer.socket.settimeout(WAIT_LIMIT_S)
        # It is alive all the same, and continues when the peer reads.
        read = 0
        while read < 4 * (sent // len(encoder.publish(b"nobody", b"", 1, 1))):
            read += len(peer.socket.recv(1 << 20))


def test_packets_sent_in_one_piece_with_connect_are_processed_behind_the_connack(broker: BrokerThread) -> None:
    with Peer(broker.port) as peer:
        peer.send(
            encoder.connect(b"eager", clean_session=False)
            + b"\x82\x06\0\x01\0\x01a\x01"
            + encoder.publish(b"a", b"x", 1, 2)
        )
        kinds = [peer.receive().kind for _ in range(4)]
        assert kinds[0] == 2 and sorted(kinds) == [2, 3, 4, 9]


def test_the_wills_of_a_broker_that_stops_leave_in_the_order_in_which_the_clients_came() -> None:
    """Planted: connections in a set, whose order depends on their addresses."""
    names = [b"client%d" % i for i in range(8)]
    with ExitStack() as stack:
        with BrokerThread(BrokerConfig(port=0, sys_interval=0)) as broker:
            watcher = stack.enter_context(Peer(broker.port))
            watcher.connect(b"watcher")
            watcher.subscribe(b"will/#", 0)
            for name in names:
                stack.enter_context(Peer(broker.port)).connect(name, will=(b"will/" + name, name, 0, False))
        assert [watcher.receive().payload for _ in names] == names
