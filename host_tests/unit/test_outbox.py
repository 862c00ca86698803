"""The outbox: order, policies, expiry, and what it says about what may have been sent."""

from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import OutboxFull
from umqtt_robust.outbox import DROP_OLDEST, EXPIRED, FULL, Outbox
from umqtt_robust.states import AWAIT_PUBACK
from umqtt_robust.store import MemoryStore


def put(outbox, n, expires=0):
    return outbox.put(b"t", b"%d" % n, AWAIT_PUBACK, 2, n, expires)


def payloads(outbox):
    return [int(outbox.store.load(slot)[1]) for slot in outbox.slots_in_order()]


def send_next(outbox, uptime=0):
    slot = outbox.unsent(uptime)
    if slot >= 0:
        outbox.sent(slot, 0)
    return slot


def test_random_use_agrees_with_a_list():
    for seed in range(40):
        rng = Rng(seed)
        outbox = Outbox(MemoryStore(rng.between(1, 9)))
        model = []  # [number, was sent on this link]
        number = 0
        for _ in range(200):
            action = rng.below(10)
            if action < 4:
                number += 1
                if len(model) < outbox.capacity:
                    put(outbox, number)
                    model.append([number, False])
                else:
                    raises(OutboxFull, put, outbox, number)
            elif action < 7:
                slot = send_next(outbox)
                waiting = [one for one in model if not one[1]]
                if waiting:
                    equal(int(outbox.store.load(slot)[1]), waiting[0][0])
                    waiting[0][1] = True
                else:
                    equal(slot, -1)
            elif action < 9:
                sent = [one for one in model if one[1]]
                if sent:
                    one = rng.choice(sent)
                    outbox.remove(outbox.by_id[one[0]])
                    model.remove(one)
            else:
                outbox.rewind()
                for one in model:
                    one[1] = False
            equal(payloads(outbox), [one[0] for one in model])
            equal(outbox.count, len(model))
            equal(outbox.in_flight, len([one for one in model if one[1]]))
            equal(sorted(outbox.by_id), sorted([one[0] for one in model]))


def test_the_lowest_free_slot_is_used_again():
    outbox = Outbox(MemoryStore(8))
    slots = [put(outbox, n) for n in (1, 2, 3)]
    equal(slots, [0, 1, 2])
    outbox.remove(1)
    equal(put(outbox, 4), 1)


def test_reject_leaves_everything_as_it_was():
    outbox = Outbox(MemoryStore(2))
    put(outbox, 1)
    put(outbox, 2)
    raises(OutboxFull, put, outbox, 3)
    equal(payloads(outbox), [1, 2])


def test_drop_oldest_never_drops_what_may_have_been_sent():
    dropped = []
    outbox = Outbox(MemoryStore(3), policy=DROP_OLDEST)
    outbox.on_dropped = lambda slot, reason: dropped.append((int(outbox.store.load(slot)[1]), reason))
    for n in (1, 2, 3):
        put(outbox, n)
    send_next(outbox)
    outbox.rewind()  # the link is gone, and perhaps 1 arrived
    put(outbox, 4)
    equal(payloads(outbox), [1, 3, 4])
    put(outbox, 5)
    equal(payloads(outbox), [1, 4, 5])
    equal(dropped, [(2, FULL), (3, FULL)])
    for _ in range(3):
        send_next(outbox)
    raises(OutboxFull, put, outbox, 6)


def test_bytes_are_bounded_too():
    outbox = Outbox(MemoryStore(8), max_bytes=10)
    outbox.put(b"topic", b"1234", AWAIT_PUBACK, 2, 1)
    raises(OutboxFull, outbox.put, b"topic", b"1234", AWAIT_PUBACK, 2, 2)
    outbox.remove(0)
    outbox.put(b"topic", b"12345", AWAIT_PUBACK, 2, 3)
    raises(OutboxFull, outbox.put, b"topic", b"123456", AWAIT_PUBACK, 2, 4)
    equal(outbox.bytes, 10)


def test_only_unsent_messages_expire():
    dropped = []
    outbox = Outbox(MemoryStore(4))
    outbox.on_dropped = lambda slot, reason: dropped.append((int(outbox.store.load(slot)[1]), reason))
    put(outbox, 1, expires=10)
    put(outbox, 2, expires=10)
    put(outbox, 3)
    send_next(outbox)
    outbox.rewind()
    equal(int(outbox.store.load(send_next(outbox, 10))[1]), 1)
    equal(int(outbox.store.load(send_next(outbox, 10))[1]), 3)
    equal(dropped, [(2, EXPIRED)])
    equal(send_next(outbox, 10), -1)


def test_tokens_are_never_zero_and_wrap():
    outbox = Outbox(MemoryStore(4))
    outbox.last_order = 0x3FFFFFFE
    equal([outbox.order[put(outbox, n)] for n in (1, 2, 3)], [0x3FFFFFFF, 1, 2])
