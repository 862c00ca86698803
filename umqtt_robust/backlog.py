"""Opens a FlashStore: finds what its folder holds, in memory that does not grow with the number of messages.

Needed at the start, and when more messages wait than the index holds: a program that is short of heap unloads it.
"""

import os
from array import array
from binascii import crc32
from struct import unpack_from

from ._platform import collect, const
from .errors import StoreError
from .flash import HAS_LIFETIME, Box, set_bit

try:
    from os import ilistdir
except ImportError:
    from ._host import ilistdir
try:
    from gc import mem_free
except ImportError:
    mem_free = None

_ENOENT = const(2)
_EVERY = const(16)  # files, whose garbage is 300 bytes to 4 KB each
# What index and list of the next messages may take of the free heap, besides a part that the rest of the program needs.
# A message in the index takes 25 bytes on 32 bits, 45 on 64, and twice that while the table of ids grows.
_REST = const(40960)
_EACH = const(128)
_EACH_LISTED = const(16)
_LEAST = const(64)  # messages in the index
_LEAST_LISTED = const(128)


def _free_heap():
    # Returns the bytes of heap that an index may take.
    collect()
    return mem_free() - _REST


def open_store(store):
    """Reads what the folder of a FlashStore holds. Raises StoreError."""
    store._session = (store._read("session") or b"").decode() or None
    index = store._most or (max(_LEAST, _free_heap() // _EACH) if mem_free else 0xFFFF)
    store.index = min(index, max(store._wanted, _LEAST))
    store._places = array("H", b"\xff\xff" * store.index)  # of each slot
    store.taken = 0
    scan(store, True)
    # Messages beyond `slots` take no room from new ones.
    store.slots = store._wanted + (store._stored if store._stored > store._wanted else 0)
    if store.inbound:
        store.inbound = Inbound(store)
        store.torn += store.inbound.torn()
    else:
        store.inbound = None


def scan(store, first=False):
    """Lists the oldest messages that are not in the index, in order. first: at the start. Raises StoreError."""
    most = max(_LEAST_LISTED, (_free_heap() - store.index * _EACH // 2) // _EACH_LISTED) if mem_free else 0xFFFF
    scan = Scan(store, most, first)
    oldest = scan.oldest
    store._listed = (oldest.places, oldest.ids, oldest.flags) if oldest.ids else None
    store._given = 0
    store._stored = scan.stored
    store.last_id = scan.last_id
    store.more = len(oldest.ids) + oldest.left_out
    if oldest.ids:
        store.taken = oldest.orders[-1]


class Oldest:
    """The oldest of the messages that were added, at most `room`, in 9 bytes each.

    orders[i], places[i], ids[i] (packet ids), flags[i]: of message i. Until sort() they are a heap, the newest message
    first. left_out: how many were added and are not among them.
    """

    def __init__(self, room):
        self._room = room
        self.left_out = 0
        self.orders = array("I")
        self.places = array("H")
        self.ids = array("H")
        self.flags = bytearray()

    def add(self, order, place, packet_id, flags):
        i = len(self.flags)
        if i < self._room:
            self.orders.append(order)
            self.places.append(place)
            self.ids.append(packet_id)
            self.flags.append(flags)
            while i and self.orders[(i - 1) // 2] < order:
                self._swap(i, (i - 1) // 2)
                i = (i - 1) // 2
            return
        self.left_out += 1
        if i and order < self.orders[0]:
            self.orders[0] = order
            self.places[0] = place
            self.ids[0] = packet_id
            self.flags[0] = flags
            self._sink(i)

    def sort(self):
        """Sorts the messages in place, the oldest first."""
        for n in range(len(self.flags) - 1, 0, -1):
            self._swap(0, n)
            self._sink(n)

    def _sink(self, n):
        orders = self.orders
        i = 0
        while True:
            j = 2 * i + 1
            if j + 1 < n and orders[j + 1] > orders[j]:
                j += 1
            if j >= n or orders[j] <= orders[i]:
                return
            self._swap(i, j)
            i = j

    def _swap(self, i, j):
        for column in (self.orders, self.places, self.ids, self.flags):
            kept = column[i]
            column[i] = column[j]
            column[j] = kept


class Scan:
    """One pass over the files of a Box: finds the oldest messages that are newer than box.taken, at most `most`.

    first: nothing is known of the box yet. oldest: these. stored: number of all whole messages; last_id: packet id of
    the newest. Raises StoreError.
    """

    def __init__(self, box, most, first):
        self._box = box
        self._buf = bytearray(max(box._chunk, 32))  # a piece of a file
        self._view = memoryview(self._buf)
        self.stored = self.last_id = self._newest = 0
        self.oldest = Oldest(most)
        if first:
            box.used = bytearray()
            box.changed = bytearray()
        self._each(first)
        if first:
            for place in box._large[:]:
                if not box.is_used(place):
                    box._free_chunk(place)
        self.oldest.sort()

    def _each(self, first):
        # Looks at each file of the Box. first: whether the store is being opened.
        box = self._box
        i = len(box._prefix)
        files = 0
        for folder in range(box.folders):
            try:
                for entry in ilistdir("%s%d" % (box._path, folder)):
                    files += 1
                    if not files % _EVERY:
                        collect()
                        if box.on_progress:
                            box.on_progress()
                    if entry[0][:i] == box._prefix:
                        self._look_at("%d/%s" % (folder, entry[0]), entry, first)
            except OSError as error:
                if error.errno != _ENOENT:
                    raise StoreError("cannot list %s: %s" % (box._path, error))

    def _look_at(self, path, entry, first):
        box = self._box
        name = entry[0]
        i = len(box._prefix)
        if name[i:].isdigit():
            place = int(name[i:])
            if first or box.is_used(place):
                self._look_at_message(path, place)
        elif name[-1] == "r":
            if first and self._read(path) == box.change_bytes:
                box._order = max(box._order, unpack_from("<I", self._buf, 4)[0])
                set_bit(box.changed, int(name[i:-1]))
        elif first and name[-2:] == ".1" and name[i:-2].isdigit():
            # A folder of the host, which MicroPython's unix port has too, does not list sizes.
            if (entry[3] if len(entry) > 3 else os.stat(box._path + path)[6]) > box._chunk:
                box._large.append(int(name[i:-2]))

    def _look_at_message(self, path, place):
        box = self._box
        n = self._read(path)
        if n > 0:
            flags, packet_id, order, _, lifetime, left, _ = box.head(path, self._buf, 4)
            if lifetime:
                flags |= HAS_LIFETIME
            if order <= box.taken:  # its chunks were read before
                left = 0
            part = 0
            while left > 0 and n > 0:
                part += 1
                n = self._read("%s.%d" % (path, part)) - 4
                left -= n
            if left:
                n = -1
        if n > 0:
            box.set_used(place, True)
            self.stored += 1
            if order >= box._order:
                box._order = order
            if order >= self._newest:
                self._newest = order
                self.last_id = packet_id
            if order > box.taken:
                self.oldest.add(order, place, packet_id, flags)
        elif n < 0:
            box.torn += 1
            box.set_used(place, False)

    def _read(self, path):
        # Returns the number of bytes in a file whose checksum is right, with the first of them in the buffer; 0 if the
        # place is free, -1 if the file is torn.
        name = self._box._path + path
        buf = self._buf
        try:
            with open(name, "rb") as file:
                total = n = file.readinto(buf)
                if n < 5:
                    return 0 if n == 1 else -1
                wanted = unpack_from("<I", buf)[0]
                crc = crc32(self._view[4:n])
                if n == len(buf):  # it may go on
                    rest = bytearray(n)
                    while n:
                        n = file.readinto(rest)
                        crc = crc32(memoryview(rest)[:n], crc)
                        total += n
        except OSError as error:
            if error.errno == _ENOENT:
                return 0
            raise StoreError("cannot read %s: %s" % (name, error))
        return total if crc == wanted else -1


class Inbound:
    """Keeps inbound messages at QoS 2 in a Box beside the outbound ones, with the methods of qos2.MemoryInbound."""

    def __init__(self, store):
        self._box = box = Box(store._path[:-1], "i", store._wanted, store._chunk)
        box.on_progress = store.on_progress
        self._place_of = {}
        oldest = Scan(box, 0xFFFF, True).oldest
        for i in range(len(oldest.ids)):
            self._place_of[oldest.ids[i]] = oldest.places[i]

    def torn(self):
        return self._box.torn

    def ids(self):
        return list(self._place_of)

    def room(self):
        return self._box.slots - len(self._place_of)

    def put(self, packet_id, flags, topic, payload):
        if self.room() <= 0:
            raise StoreError("no room inbound")
        place = self._box.free_place()
        self._box.put(place, packet_id, flags, topic, payload)
        self._place_of[packet_id] = place

    def get(self, packet_id):
        place = self._place_of.get(packet_id)
        if place is None:
            return None
        message = self._box.message(place)
        return message and (message[0], message[4], message[5])

    def tombstone(self, packet_id):
        self._box.tombstone(self._place_of[packet_id])
        del self._place_of[packet_id]
