"""Finds what a FlashStore's folder holds, in memory that does not grow with the number of messages."""

import os
from array import array
from binascii import crc32
from struct import unpack_from

from ._platform import collect, const
from .errors import StoreError
from .flash import set_bit

try:
    from os import ilistdir
except ImportError:
    from ._host import ilistdir

_ENOENT = const(2)
_HAS_LIFETIME = const(0x20)  # in Oldest.flags; stored flags do not use this bit
_EVERY = const(16)  # files, whose garbage is 300 bytes to 4 KB each


class Oldest:
    """The oldest of the messages that were added, at most `room`, in 9 bytes each.

    orders[i], places[i], ids[i] (packet ids), flags[i]: of message i of n. Until sort() they are a heap, the newest
    message first. left_out: how many were added and are not among them. has_lifetime: a bit of `flags`.
    given: how many of them the outbox has.
    """

    has_lifetime = _HAS_LIFETIME

    def __init__(self, room):
        self.n = self.left_out = self.given = 0
        self.orders = array("I", bytes(4 * room))
        self.places = array("H", bytes(2 * room))
        self.ids = array("H", bytes(2 * room))
        self.flags = bytearray(room)

    def add(self, order, place, packet_id, flags):
        i = self.n
        if i < len(self.flags):
            self.n += 1
        else:
            self.left_out += 1
            if not i or order > self.orders[0]:
                return
            i = 0
        self.orders[i] = order
        self.places[i] = place
        self.ids[i] = packet_id
        self.flags[i] = flags
        if i:
            while i and self.orders[(i - 1) // 2] < order:
                self._swap(i, (i - 1) // 2)
                i = (i - 1) // 2
        else:
            self._sink(self.n)

    def sort(self):
        """Sorts the messages in place, the oldest first."""
        for n in range(self.n - 1, 0, -1):
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

    oldest: these. stored: number of all whole messages; last_id: packet id of the newest. Raises StoreError.
    """

    def __init__(self, box, most):
        self._box = box
        self._buf = bytearray(max(box._chunk, 32))  # a piece of a file
        self._view = memoryview(self._buf)
        self.stored = self.last_id = self._newest = self._count = 0
        first = box.used is None
        if first:
            box.used = bytearray()
            box.changed = bytearray()
        self._each(self._add_one, True)
        self.oldest = Oldest(min(most, self._count))
        self._each(self._look_at, first)
        if first:
            for place in box._large[:]:
                if not box.is_used(place):
                    box._free_chunk(place)
        self.oldest.sort()

    def _each(self, function, first):
        # Calls function(path, entry, first) for each file of the Box.
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
                        function("%d/%s" % (folder, entry[0]), entry, first)
            except OSError as error:
                if error.errno != _ENOENT:
                    raise StoreError("cannot list %s: %s" % (box._path, error))

    def _add_one(self, path, entry, first):
        self._count += entry[0][len(self._box._prefix) :].isdigit()

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
                flags |= _HAS_LIFETIME
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
