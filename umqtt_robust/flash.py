"""FlashStore keeps messages over a power cut: in small files, on littlefs, FAT or a host's file system.

Layout of `path`. A file begins with the CRC-32 of the rest of it; numbers are little-endian.
    N       slot N: format B, flags B, packet id H, order I, lifetime I (seconds), length of the topic name H, bytes in
            the chunks I, topic and payload; or one byte, the tombstone: the slot is free
    N.1 ..  chunks: the end of a message that is too large for one file
    Nr      what change() stored: order I (of the message it belongs to), rank I, flags B
    session the name of the broker
    in/     inbound messages at QoS 2, laid out likewise

What makes a cut at any moment harmless, also where opening a file for writing empties it first: a file is only written
while nothing depends on what it held. Chunks come before the slot that names them, a slot is written when it is free,
and a state that changes has a file of its own, which counts for no message but its own: orders grow for ever. Wear: on
littlefs a small file lies inside its directory's log, which erases a block once per 4 KB of log, so files are rewritten
and never removed.
"""

import os
from array import array
from binascii import crc32
from struct import calcsize, pack, unpack, unpack_from

from ._platform import const
from .errors import StoreError

try:
    from os import fsync  # noqa: F401 - MicroPython has none: flush() and close() are enough there

    from ._host import open_durably as open  # noqa: A004
except ImportError:
    pass

_FORMAT = const(1)
_HEAD = "<BBHIIHI"
_MOST_CHUNKS = const(8)  # a message that would need more has all the rest in one


class Box:
    """Numbered slots in one folder."""

    def __init__(self, path, slots, chunk):
        self._path = path + "/"
        self._chunk = chunk
        self._order = 0
        self._orders = array("I", bytes(4 * slots))
        self.slots = slots
        self.torn = 0

    def _write(self, name, *parts):
        # The whole file at once: littlefs replaces it when it is closed.
        crc = 0
        for part in parts:
            crc = crc32(part, crc)
        self._write_raw(name, pack("<I", crc), *parts)

    def _write_raw(self, name, *parts):
        try:
            with open(self._path + name, "wb") as file:
                for part in parts:
                    if file.write(part) != len(part):
                        raise OSError(28)  # ENOSPC
                file.flush()  # on the unix port: fsync
        except OSError as error:
            if error.errno == 2 and self._make_folder():  # ENOENT
                self._write_raw(name, *parts)
                return
            raise StoreError("cannot write %s%s: %s" % (self._path, name, error))

    def _make_folder(self):
        try:
            os.mkdir(self._path[:-1])
        except OSError:
            return False
        return True

    def _read(self, name):
        # What _write() wrote; b"" when there is none or it is free; None when it is torn.
        try:
            with open(self._path + name, "rb") as file:
                data = file.read()
        except OSError as error:
            if error.errno == 2:  # ENOENT
                return b""
            raise StoreError("cannot read %s%s: %s" % (self._path, name, error))
        if len(data) == 1:
            return b""
        if len(data) > 4 and unpack_from("<I", data)[0] == crc32(data[4:]):
            return data[4:]
        return None

    def put(self, slot, packet_id, flags, topic, payload, lifetime=0):
        body = memoryview(topic + payload)
        n = len(body)
        i = min(n, self._chunk - calcsize(_HEAD) - 4)
        order = self._order + 1
        head = pack(_HEAD, _FORMAT, flags, packet_id, order, lifetime, len(topic), n - i)
        first = body[:i]
        step = self._chunk - 4
        if n - i > step * _MOST_CHUNKS:
            step = n
        part = 0
        while i < n:
            part += 1
            self._write("%d.%d" % (slot, part), body[i : i + step])
            i += step
        self._write(str(slot), head, first)  # last: now the message is stored
        self._order = self._orders[slot] = order

    def message(self, slot):
        """(flags, packet_id, order, lifetime, topic, payload), or None when the slot is free or torn.

        Raises StoreError when it cannot be read, or another format of this library wrote it.
        """
        data = self._read(str(slot))
        if data and data[0] != _FORMAT:
            raise StoreError("%s%s is of format %d: not touched" % (self._path, slot, data[0]))
        if data:
            _, flags, packet_id, order, lifetime, k, left = unpack_from(_HEAD, data)
            data = data[calcsize(_HEAD) :]
            part = 0
            while left > 0 and data is not None:
                part += 1
                chunk = self._read("%d.%d" % (slot, part))
                left -= len(chunk or b"")
                data = chunk and data + chunk
            if data is not None and not left:
                return flags, packet_id, order, lifetime, data[:k], data[k:]
        if data != b"":
            self.torn += 1
        return None

    def load(self, slot):
        message = self.message(slot)
        if not message:
            raise StoreError("%s%d is torn" % (self._path, slot))
        return message[4:]

    def tombstone(self, slot):
        self._write_raw(str(slot), b"\0")

    def restore(self):
        found = []
        changes = {}
        try:
            names = os.listdir(self._path[:-1])
        except OSError as error:
            if error.errno == 2:
                return found
            raise StoreError("cannot list %s: %s" % (self._path, error))
        for name in names:
            if name[-1] == "r":
                data = self._read(name)
                if data:
                    change = unpack("<IIB", data)
                    changes[change[0]] = change
                    self._order = max(self._order, change[0])
            elif name.isdigit():
                slot = int(name)
                message = self.message(slot)
                if message:
                    if slot >= self.slots:
                        raise StoreError("%s holds a message in slot %d of %d" % (self._path, slot, self.slots))
                    flags, packet_id, order, lifetime = message[:4]
                    self._orders[slot] = order
                    self._order = max(self._order, order)
                    found.append((order, slot, packet_id, flags, lifetime))
        found.sort()
        return [
            (slot, packet_id, changes.get(order, (0, 0, flags))[2], changes.get(order, (0, 0))[1], lifetime)
            for order, slot, packet_id, flags, lifetime in found
        ]


class FlashStore(Box):
    """Keeps messages in the folder `path`: `slots` outbound ones, and as many inbound at QoS 2.

    chunk: bytes that a file may have. On littlefs the limit below which a small file needs no block of its own: 120
    suits any port, 504 a port whose program size is 256 (rp2). torn: how many broken files were found, and left out.
    """

    def __init__(self, path, slots=32, chunk=120):
        Box.__init__(self, path, slots, chunk)
        self._session = None
        self.inbound = None

    def restore(self):
        found = Box.restore(self)
        self._session = (self._read("session") or b"").decode() or None
        self.inbound = Inbound(Box(self._path + "in", self.slots, self._chunk))
        return found

    def change(self, slot, flags, rank):
        self._write("%dr" % slot, pack("<IIB", self._orders[slot], rank, flags))

    @property
    def session(self):
        return self._session

    @session.setter
    def session(self, name):
        self._write("session", (name or "").encode())
        self._session = name


class Inbound:
    """See qos2.MemoryInbound: inbound messages in a Box."""

    def __init__(self, box):
        self._box = box
        self._slot_of = {entry[1]: entry[0] for entry in box.restore()}

    def ids(self):
        return list(self._slot_of)

    def put(self, packet_id, flags, topic, payload):
        box = self._box
        used = self._slot_of.values()
        for slot in range(box.slots):
            if slot not in used:
                box.put(slot, packet_id, flags, topic, payload)
                self._slot_of[packet_id] = slot
                return
        raise StoreError("no room for an inbound message")

    def get(self, packet_id):
        slot = self._slot_of.get(packet_id)
        if slot is None:
            return None
        message = self._box.message(slot)
        return message and (message[0], message[4], message[5])

    def tombstone(self, packet_id):
        self._box.tombstone(self._slot_of[packet_id])
        del self._slot_of[packet_id]
