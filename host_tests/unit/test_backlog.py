"""A FlashStore that holds more than its index in RAM, or than its slots: order, restarts, settings that change."""

import os

from umqtt_testkit.portable import Clock, Rng, equal, new_path, raises

from umqtt_robust import Client
from umqtt_robust.backlog import Oldest
from umqtt_robust.errors import OutboxFull, StoreError
from umqtt_robust.flash import FlashStore
from umqtt_robust.packets import DUP
from umqtt_robust.policy import DROP_OLDEST
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MAYBE_SENT, Outbox

HEAP = "1M"
WINDOW = 3


def made_folder():
    path = new_path("backlog")
    os.mkdir(path)
    return path


def payload_of(number):
    return b"%d " % number + b"x" * (number * 37 % 150)


class Device:
    """An outbox from restart to restart, compared with `model`: the numbers of the messages that it must hold."""

    def __init__(self, path, rng):
        self.path = path
        self.rng = rng
        self.number = 0
        self.model = []
        self.restart()

    def restart(self):
        slots = self.rng.choice((4, 8, 20, 40))
        index = self.rng.choice((WINDOW + 1, 6, None))
        self.store = FlashStore(self.path, slots, 60, index)
        self.outbox = Outbox(self.store, WINDOW)
        self.slots = max(slots, len(self.model))
        self.sent = []  # of the model, on this link
        self.last_id = self.store.last_id
        self.check()

    def held(self):
        return len(self.outbox.slot_of) + self.outbox.more

    def check(self):
        equal(self.held(), len(self.model), self.rng.seed)
        equal([self.body(packet_id) for packet_id in packet_ids(self.outbox)], self.model[: len(self.outbox.slot_of)])

    def body(self, packet_id):
        topic, payload = self.outbox.store.load(self.outbox.slot_of[packet_id])
        equal(topic, b"t")
        number = int(payload.split()[0])
        equal(payload, payload_of(number))
        return number

    def put(self):
        self.number += 1
        self.last_id = self.last_id % 65535 + 1
        message = self.last_id, 2 + 2 * (self.number % 2), b"t", payload_of(self.number), self.number % 3
        if len(self.model) < self.store.slots:
            self.outbox.put(*message)
            self.model.append(self.number)
        else:
            raises(OutboxFull, self.outbox.put, *message)

    def send(self):
        # As the session does: the oldest that was not sent on this link.
        packet_id = self.outbox.next_unsent()
        if not packet_id:
            return False
        number = self.body(packet_id)
        self.sent.append((packet_id, number))
        equal(number, self.model[len(self.sent) - 1], "out of order")
        self.outbox.mark_in_flight(packet_id, 0, MAYBE_SENT | DUP)
        self.outbox.head = self.outbox.next[self.outbox.head]
        return True

    def acknowledge(self, i):
        packet_id, number = self.sent.pop(i)
        assert self.outbox.remove(packet_id)
        self.model.remove(number)

    def lose_link(self):
        self.sent = []
        self.outbox.rewind(False)


def test_random_use_agrees_with_a_list_over_restarts_with_other_settings():
    """Planted: a message that more() returned is returned again; new ones do not wait behind the older ones."""
    for seed in range(12):
        rng = Rng(seed)
        rng.seed = seed
        path = made_folder()
        device = Device(path, rng)
        for _ in range(250):
            chance = rng.below(100)
            if chance < 50:
                device.put()
            elif chance < 70:
                if len(device.sent) < WINDOW:
                    device.send()
            elif chance < 90:
                if device.sent:
                    device.acknowledge(rng.below(len(device.sent)))
            elif chance < 97:
                device.lose_link()
            else:
                device.restart()
            device.check()
        # Everything goes out, in order.
        device.lose_link()
        while device.model:
            while len(device.sent) < WINDOW and device.send():
                pass
            device.acknowledge(0)
        equal(device.held(), 0)
        equal(list(FlashStore(path, 40, 60).restore()), [])


def test_the_oldest_are_found_in_order_whatever_comes_first():
    """Planted: one level too few of the heap is searched."""
    rng = Rng(4)
    for room in (0, 1, 2, 3, 7, 30):
        for n in (0, 1, 2, 5, 30, 61):
            orders = []
            while len(orders) < n:
                order = rng.below(1 << 30)
                if order not in orders:
                    orders.append(order)
            oldest = Oldest(room)
            for order in orders:
                oldest.add(order, order % 9999, order % 65521, order % 200)
            oldest.sort()
            orders.sort()
            equal((len(oldest.ids), oldest.left_out), (min(room, n), max(0, n - room)))
            for i in range(len(oldest.ids)):
                order = orders[i]
                found = oldest.orders[i], oldest.places[i], oldest.ids[i], oldest.flags[i]
                equal(found, (order, order % 9999, order % 65521, order % 200))


def fill(path, count, slots=64, index=None):
    store = FlashStore(path, slots, 60, index)
    outbox = Outbox(store, WINDOW)
    for number in range(count):
        outbox.put(store.last_id + number + 1, 2, b"t", payload_of(number))
    return outbox


def test_fewer_slots_than_messages_lose_nothing_and_count_again_once_the_rest_is_gone():
    """Planted: `slots` stays at the larger number; the messages in places above `slots` are refused."""

    path = made_folder()
    fill(path, 30)
    store = FlashStore(path, 4, 60, 4)
    outbox = Outbox(store, WINDOW)
    equal((store.slots, len(outbox.slot_of), outbox.more), (34, 4, 26))
    for number in range(30, 34):
        outbox.put(100 + number, 2, b"t", payload_of(number))
    raises(OutboxFull, outbox.put, 999, 2, b"t", b"")
    for number in range(34):
        packet_id = outbox.next_unsent()
        equal(outbox.store.load(outbox.slot_of[packet_id])[1], payload_of(number))
        equal(store.slots, 34 if number < 30 else 4)
        outbox.remove(packet_id)
    for number in range(4):
        outbox.put(number + 1, 2, b"t", b"")
    raises(OutboxFull, outbox.put, 999, 2, b"t", b"")


def unreachable(host, port, path):
    raise OSError(113)


def client_of(path, slots, index, **options):
    clock = Clock()
    client = Client(b"c", "mqtt://h", transports={"mqtt": unreachable}, ticks=clock.ticks_ms, clean_session=False,
                    window=1, store=FlashStore(path, slots, 60, index), **options)  # fmt: skip
    client.clock = clock
    client.dropped = []
    client.on_dropped = lambda packet_id, topic, payload, reason: client.dropped.append(int(payload.split()[0]))
    return client


def test_the_client_drops_the_oldest_of_all_and_counts_all_as_pending():
    """Planted: only the messages of the index count for the limit."""

    path = made_folder()
    client = client_of(path, 20, 6, policy=DROP_OLDEST)
    for number in range(20):
        client.publish("t", payload_of(number), 1)
        equal(client.pending, number + 1)
    for number in range(20, 50):
        packet_id = client.publish("t", payload_of(number), 1)
        assert client.is_pending(packet_id)
        equal((client.pending, client.dropped[-1]), (20, number - 20))
    again = client_of(path, 20, 6, policy=DROP_OLDEST)
    equal(again.pending, 20)
    again.publish("t", b"50", 1)
    equal((again.pending, again.dropped), (20, [31]))  # the first one may have been sent
    # Fewer slots: what is stored stays, besides five new ones.
    fewer = client_of(path, 5, None, policy=DROP_OLDEST)
    for number in range(51, 56):
        fewer.publish("t", b"%d" % number, 1)
    equal((fewer.pending, fewer.dropped), (25, []))
    for number in range(56, 65):
        fewer.publish("t", b"%d" % number, 1)
        equal((fewer.pending, fewer.dropped[-1]), (25, number - 24))


def test_a_message_that_is_damaged_while_it_waits_outside_the_index_is_counted_and_holds_up_none():
    """Planted: `pending` still counts it, so that disconnect() never ends."""

    path = made_folder()
    outbox = fill(path, 12, index=4)
    with open(path + "/7/7", "wb") as file:
        file.write(b"torn by somebody")
    sent = []
    while True:
        packet_id = outbox.next_unsent()
        if not packet_id:
            break
        sent.append(int(outbox.store.load(outbox.slot_of[packet_id])[1].split()[0]))
        outbox.remove(packet_id)
    equal(sent, [number for number in range(12) if number != 7])
    equal((outbox.store.torn, outbox.more), (1, 0))


def test_messages_that_wait_expire_after_their_lifetime_in_the_index():
    path = made_folder()
    client = client_of(path, 20, 4)
    for number in range(8):
        client.publish("t", payload_of(number), 1, expires_in=5000)
    client.clock.advance(7000)
    client.tick()
    equal(client.dropped, [0, 1, 2, 3])
    again = client_of(path, 20, 4)
    again.tick()
    again.clock.advance(7000)
    again.tick()
    equal(sorted(again.dropped), [5, 6, 7])  # the first one may have been sent


def test_an_unreadable_folder_raises_and_is_named():
    path = made_folder()
    with open(path + "/3", "wb") as file:
        file.write(b"a file, where a folder belongs")
    error = raises(StoreError, FlashStore(path, 4, 60).restore)
    assert path in str(error), error
