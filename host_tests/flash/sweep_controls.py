"""Stores with a planted mistake. The sweeps must catch every one of them, or they prove nothing."""

import os
from struct import pack

from umqtt_robust.backlog import Inbound
from umqtt_robust.flash import _CHANGE, Box, FlashStore, _open


class SkipsFlush(FlashStore):
    """Leaves a file open until the next one is written, so it is not durable when the method returns."""

    _file = None

    def _write_raw(self, name, *parts):
        if self._file:
            self._file.close()
        self._file = _open(self._path + name)  # the mistake: it stays open
        for part in parts:
            self._file.write(part)


class Rewrites(FlashStore):
    """Rewrites the whole slot for a change, in the way that a subclass defines."""

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
    """Removes the old state before the new one is written."""

    def _begin(self, slot):
        self.tombstone(slot)


class RenameAfterRemove(Rewrites):
    """Renames a temporary file to the slot that was removed before."""

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
    """Names chunks in the slot before they are written: those of an older message may be there."""

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
    """Begins the order numbers at 0 after a restart, so that an old change may count for a new message."""

    def restore(self):
        result = FlashStore.restore(self)
        if not result:
            self._order = 0
        return result


class ForgetsBeforeTheHandler(FlashStore):
    """Removes an inbound message when it is taken out, before it is handled."""

    def restore(self):
        result = FlashStore.restore(self)
        inbound = RemovesOnGet(self)
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
            self._box.tombstone(self._place_of[packet_id])
        return self._taken[packet_id]

    def tombstone(self, packet_id):
        del self._taken[packet_id]
        del self._place_of[packet_id]


class NeverForgets(FlashStore):
    """Keeps acknowledged messages."""

    def tombstone(self, slot):
        pass


CONTROLS = (
    SkipsFlush, TombstoneFirst, RenameAfterRemove, SlotBeforeChunks, OrdersBeginAgain, ForgetsBeforeTheHandler,
    NeverForgets,
)  # fmt: skip
