"""The outbox: order, slots, and its record of messages in flight."""

from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import OutboxFull
from umqtt_robust.packets import DUP
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MAYBE_SENT, MemoryStore, Outbox


def put(outbox, n):
    outbox.put(n, 2, b"t", b"%d" % n)


def send_next(outbox):
    packet_id = outbox.next_unsent()
    if packet_id:
        outbox.head = outbox.next[outbox.head]
        assert outbox.mark_in_flight(packet_id, 0, MAYBE_SENT | DUP)
        assert not outbox.mark_in_flight(packet_id, 1)
    return packet_id


def test_random_use_agrees_with_a_list():
    for seed in range(40):
        rng = Rng(seed)
        outbox = Outbox(MemoryStore(rng.between(1, 9)), 8)
        model = []  # [number, was sent on this link]
        number = 0
        for _ in range(200):
            action = rng.below(10)
            if action < 4:
                number += 1
                if len(model) < outbox.store.slots:
                    put(outbox, number)
                    model.append([number, False])
                else:
                    raises(OutboxFull, put, outbox, number)
            elif action < 7:
                waiting = [one for one in model if not one[1]]
                equal(send_next(outbox), waiting[0][0] if waiting else 0)
                if waiting:
                    waiting[0][1] = True
            elif action < 9:
                if model:
                    one = rng.choice(model)
                    equal(outbox.remove(one[0]), one[1])
                    model.remove(one)
            else:
                outbox.rewind(False)
                for one in model:
                    one[1] = False
            equal(packet_ids(outbox), [one[0] for one in model])
            equal(sorted(outbox.slot_of), sorted([one[0] for one in model]))


def test_the_lowest_free_slot_is_used_again():
    outbox = Outbox(MemoryStore(8), 8)
    for n in (1, 2, 3):
        put(outbox, n)
    equal([outbox.slot_of[n] for n in (1, 2, 3)], [0, 1, 2])
    outbox.remove(2)
    put(outbox, 4)
    equal(outbox.slot_of[4], 1)


class Restored(MemoryStore):
    """A store that holds the messages of an earlier run."""

    def __init__(self, found):
        MemoryStore.__init__(self, 16)
        self.found = found

    def restore(self):
        return self.found


def test_restored_messages_have_dup_when_they_may_have_been_sent():
    found = [(slot, 100 + slot, 0x02, 0, 0) for slot in range(6)]
    outbox = Outbox(Restored(found), 4)
    equal(packet_ids(outbox), [100, 101, 102, 103, 104, 105])
    equal([outbox.flags[slot] & 8 for slot in range(6)], [8, 8, 8, 8, 0, 0])


def test_restored_pubrels_keep_the_order_of_their_pubrecs():
    found = [(0, 1, 0x44, 9, 0), (1, 2, 0x04, 0, 0), (2, 3, 0x44, 7, 0), (3, 4, 0x44, 8, 0)]
    outbox = Outbox(Restored(found), 8)
    equal(outbox.released, [3, 4, 1])
    equal(outbox.rank, 9)
    equal(outbox.next_unsent(), 2)
