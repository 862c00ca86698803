"""A full outbox, and messages that expire: what is dropped."""

from umqtt_testkit.portable import Clock, equal, raises

from umqtt_robust import Client
from umqtt_robust.errors import OutboxFull
from umqtt_robust.packets import DUP
from umqtt_robust.policy import DROP_NEWEST, DROP_OLDEST, EXPIRED, FULL
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MAYBE_SENT, MemoryStore


def unreachable(host, port, path):
    raise OSError(113)


def offline(slots, **options):
    clock = Clock()
    options["transports"] = {"mqtt": unreachable}
    client = Client(b"c", "mqtt://h", store=MemoryStore(slots), ticks=clock.ticks_ms, **options)
    client.dropped = []
    client.on_dropped = lambda packet_id, topic, payload, reason: client.dropped.append((int(payload), reason))
    client.clock = clock
    return client


def put(client, number, **options):
    return client.publish("t", b"%d" % number, 1, **options)


def held(client):
    store = client.outbox.store
    return [int(store.load(client.outbox.slot_of[packet_id])[1]) for packet_id in packet_ids(client.outbox)]


def send_next(client):
    packet_id = client.outbox.next_unsent()
    client.outbox.head = client.outbox.next[client.outbox.head]
    client.in_flight += client.outbox.mark_in_flight(packet_id, 0, MAYBE_SENT | DUP)


def test_reject_leaves_everything_as_it_was():
    client = offline(2)
    put(client, 1)
    put(client, 2)
    raises(OutboxFull, put, client, 3)
    equal(held(client), [1, 2])
    equal((client.discarded, client.dropped), (1, []))


def test_drop_newest_says_so():
    client = offline(1, policy=DROP_NEWEST)
    put(client, 1)
    equal(put(client, 2), None)
    equal((held(client), client.discarded), ([1], 1))


def test_drop_oldest_never_drops_what_may_have_been_sent():
    client = offline(3, policy=DROP_OLDEST)
    for number in (1, 2, 3):
        put(client, number)
    send_next(client)
    client.close()  # the link is lost, and message 1 may have arrived
    put(client, 4)
    equal(held(client), [1, 3, 4])
    put(client, 5)
    equal(held(client), [1, 4, 5])
    equal(client.dropped, [(2, FULL), (3, FULL)])
    for _ in range(3):
        send_next(client)
    raises(OutboxFull, put, client, 6)


def test_bytes_are_bounded_too():
    client = offline(8, max_bytes=10)
    client.publish("topic", b"1234", 1)
    raises(OutboxFull, client.publish, "topic", b"1234", 1)
    raises(OutboxFull, client.publish, "topic", b"123456", 1)
    equal(client.pending, 1)
    client.remove(packet_ids(client.outbox)[0])
    client.publish("topic", b"12345", 1)
    client = offline(8, max_bytes=4, policy=DROP_OLDEST)
    for number in (1, 2, 3):
        put(client, number)
    equal(held(client), [2, 3])


def test_only_unsent_messages_expire_and_never_early():
    client = offline(4)
    put(client, 1, expires_in=5000)
    put(client, 2, expires_in=5000)
    put(client, 3)
    send_next(client)
    client.close()
    client.clock.advance(4999)
    client.tick()
    client.part("limits").pump()
    equal(held(client), [1, 2, 3])
    client.clock.advance(2001)
    client.tick()
    client.part("limits").pump()
    equal(held(client), [1, 3])
    equal((client.dropped, client.discarded), ([(2, EXPIRED)], 1))


def test_a_packet_id_that_is_used_again_does_not_inherit_an_expiry():
    client = offline(4)
    packet_id = put(client, 1, expires_in=1000)
    client.remove(packet_id)
    client.last_id = packet_id - 1
    equal(put(client, 2), packet_id)
    client.clock.advance(10000)
    client.tick()
    client.part("limits").pump()
    equal(held(client), [2])


def test_expiry_counts_across_the_wrap_and_over_weeks():
    client = offline(4)
    put(client, 1, expires_in=21 * 86400000)
    for day in range(1, 23):
        for _ in range(24):
            client.clock.advance(3600000)
            client.tick()
        client.part("limits").pump()
        equal(held(client), [1] if day <= 21 else [], "day %d" % day)


def test_without_a_limit_in_bytes_nothing_is_remembered_of_messages_that_are_gone():
    client = offline(4, policy=DROP_OLDEST)
    for number in range(300):
        put(client, number)
    equal(client.outbox.size, None)
