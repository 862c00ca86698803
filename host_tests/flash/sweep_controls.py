"""Stores with a planted mistake. The sweeps must catch every one of them, or they prove nothing."""

import os
from struct import pack

from umqtt_robust.flash import _CHANGE, Box, FlashStore, Inbound, _open


class SkipsFlush(FlashStore):
    """Leaves a file open until the next one is written: it is not durable when the method returns."""

    _file = None

    def _write_raw(self, name, *parts):
        if self._file:
            self._file.close()
        self._file = _open(self._path + name)  # left open is the mistake
        for part in parts:
            self._file.write(part)


class Rewrites(FlashStore):
    """A change rewrites the whole slot, in a way of its own."""

    def change(self, slot, flags, rank):
        _, packet_id, order, lifetime, topic, payload = self.message(slot)
        self._begin(slot)
        before, self._order = self._order, order - 1
        self.put(slot, packet_id, flags, topic, payload, lifetime)
        self._order = max(before, order)
        self._end(slot)
        self._write(self._name(slot) + "r", pack(_CHANGE, order, rank, flags))

    def _begin(self, slot):
        pass

    def _end(self, slot):
        pass


class TombstoneFirst(Rewrites):
    """The old state goes before the new one is there."""

    def _begin(self, slot):
        self.tombstone(slot)


class RenameAfterRemove(Rewrites):
    """A temporary file takes the place of the slot, which was removed before."""

    def _name(self, slot):
        return Box._name(self, slot) + (".new" if self._renaming else "")

    _renaming = False

    def _begin(self, slot):
        self._renaming = True

    def _end(self, slot):
        new = self._path + self._name(slot)
        self._renaming = False
        old = self._path + self._name(slot)
        os.remove(old)
        os.rename(new, old)


class SlotBeforeChunks(FlashStore):
    """The slot names chunks that are not written yet: those of an older message may lie there."""

    def put(self, slot, *message):
        self._waiting = []
        FlashStore.put(self, slot, *message)
        for name, chunk in self._waiting:
            FlashStore._write(self, name, chunk)

    def _write(self, name, *parts):
        if "." in name:
            self._waiting.append((name, bytes(parts[0])))
        else:
            FlashStore._write(self, name, *parts)


class OrdersBeginAgain(FlashStore):
    """After a restart the orders begin at 0, so that an old change may count for a new message."""

    def restore(self):
        result = FlashStore.restore(self)
        if not result:
            self._order = 0
        return result


class ForgetsBeforeTheHandler(FlashStore):
    """An inbound message is removed when it is taken out to be handled."""

    def restore(self):
        result = FlashStore.restore(self)
        inbound = RemovesOnGet(self.inbound._box)
        inbound._slot_of = self.inbound._slot_of
        inbound._taken = {}
        self.inbound = inbound
        return result


class RemovesOnGet(Inbound):
    def get(self, packet_id):
        if packet_id not in self._taken:
            message = Inbound.get(self, packet_id)
            if message is None:
                return None
            self._taken[packet_id] = message
            self._box.tombstone(self._slot_of[packet_id])
        return self._taken[packet_id]

    def tombstone(self, packet_id):
        del self._taken[packet_id]
        del self._slot_of[packet_id]


class NeverForgets(FlashStore):
    """Acknowledged messages stay."""

    def tombstone(self, slot):
        pass


CONTROLS = (
    SkipsFlush, TombstoneFirst, RenameAfterRemove, SlotBeforeChunks, OrdersBeginAgain, ForgetsBeforeTheHandler,
    NeverForgets,
)  # fmt: skip
