"""FlashStore keeps messages over a power cut: in small files, on littlefs, FAT or a host's file system.

Layout of the folder `path`. Slot N is in its folder N % 8. A file begins with the CRC-32 of the rest of it; numbers are
little-endian.
    N       slot N: format B, flags B, packet id H, order I, length of the topic name H; in format 2 also lifetime I
            (seconds, 0: for ever) and bytes in the chunks I; topic and payload. Or one byte, a tombstone: it is free
    N.1 ..  chunks: the rest of a message that is too large for one file
    Nr      what change() stored: order I (of the message it belongs to), rank I, flags B
    iN ..   inbound messages at QoS 2, in the same formats
    session the name of the broker whose session this is; it lies in `path` itself

Why power cuts are safe, even where open("wb") truncates first: a file is only written while nothing depends on its old
content. The chunks of a message are written before its slot, and a slot is written while it is free. A changed state
has a file of its own, Nr, which counts only for the message with the same order: no order is used twice.

Wear: littlefs keeps a small file in the log of its folder, and erases a block whenever the log is full: once for about
4 KB written, less the size of the files that are kept. So files are rewritten and not removed, and the kept files are
spread over eight folders. A folder takes two blocks, so it is made only when it is needed. A chunk with blocks of its
own (_MOST_CHUNKS) gives them back when its slot becomes free: its file is emptied then, or by restore() if the power
was cut before.
"""

import os
from binascii import crc32
from struct import calcsize, pack, unpack, unpack_from

from ._platform import const
from .errors import StoreError

try:
    from os import fsync  # noqa: F401
except ImportError:  # MicroPython: there flush() and close() are enough
    from os import mkdir
else:
    from ._host import mkdir_durably as mkdir
    from ._host import open_durably as open

_ENOENT = const(2)
_ENOSPC = const(28)
_FOLDERS = const(8)
_SHORT = const(1)
_LONG = const(2)
_HEAD = "<BBHIH"
_MORE = "<II"
_CHANGE = "<IIB"
_MOST_CHUNKS = const(8)  # a message that would need more has one large chunk


def _open(name):
    try:
        return open(name, "wb")
    except OSError as error:
        if error.errno != _ENOENT:
            raise
    _make(name[: name.rfind("/")])
    return open(name, "wb")


def _make(folder):
    try:
        mkdir(folder)
    except OSError as error:
        if error.errno != _ENOENT or "/" not in folder[1:]:
            raise
        _make(folder[: folder.rfind("/")])
        mkdir(folder)


class Box:
    """Numbered slots in the folder path. prefix: of their files' names; chunk: the most bytes of a file."""

    def __init__(self, path, prefix, slots, chunk):
        self._path = path + "/"
        self._prefix = prefix
        self._chunk = chunk
        self._order = 0
        self.slots = slots
        self.torn = 0
        self._large = []  # slots whose first chunk has blocks of its own

    def _name(self, slot):
        return "%d/%s%d" % (slot % _FOLDERS, self._prefix, slot)

    def _write(self, name, *parts):
        crc = 0
        for part in parts:
            crc = crc32(part, crc)
        self._write_raw(name, pack("<I", crc), *parts)

    def _write_raw(self, name, *parts):
        # littlefs replaces the file atomically when it is closed.
        name = self._path + name
        try:
            with _open(name) as file:
                for part in parts:
                    if file.write(part) != len(part):
                        raise OSError(_ENOSPC)
                file.flush()  # on the unix port: fsync
        except OSError as error:
            raise StoreError("cannot write %s: %s" % (name, error))

    def _read(self, name):
        # Returns what _write() wrote; b"" if there is no file or the slot is free; None if it is torn.
        name = self._path + name
        try:
            with open(name, "rb") as file:
                data = file.read()
        except OSError as error:
            if error.errno == _ENOENT:
                return b""
            raise StoreError("cannot read %s: %s" % (name, error))
        if len(data) == 1:
            return b""
        if len(data) > 4 and unpack_from("<I", data)[0] == crc32(data[4:]):
            return data[4:]
        return None

    def put(self, slot, packet_id, flags, topic, payload, lifetime=0):
        body = memoryview(topic + payload)
        n = len(body)
        order = self._order + 1
        i = self._chunk - 4 - calcsize(_HEAD)
        if lifetime or n > i:
            i = min(n, i - calcsize(_MORE))
            head = pack(_HEAD, _LONG, flags, packet_id, order, len(topic)) + pack(_MORE, lifetime, n - i)
        else:
            i = n
            head = pack(_HEAD, _SHORT, flags, packet_id, order, len(topic))
        first = body[:i]
        step = self._chunk - 4
        if n - i > step * _MOST_CHUNKS:
            step = n
            if slot not in self._large:
                self._large.append(slot)
        name = self._name(slot)
        part = 0
        try:
            while i < n:
                part += 1
                self._write("%s.%d" % (name, part), body[i : i + step])
                i += step
            self._write(name, head, first)  # last: now the message is stored
        except StoreError:
            self._free_chunk(slot)
            raise
        self._order = order

    def message(self, slot):
        """Returns (flags, packet_id, order, lifetime, topic, payload), or None if the slot is free or torn.

        Raises StoreError if it cannot be read, or if another version of this library wrote it.
        """
        name = self._name(slot)
        data = self._read(name)
        if data:
            kind = data[0]
            if not 0 < kind <= _LONG:
                raise StoreError("%s%s has format %d: left as it is" % (self._path, name, kind))
            kind, flags, packet_id, order, k = unpack_from(_HEAD, data)
            i = calcsize(_HEAD)
            lifetime = left = 0
            if kind == _LONG:
                lifetime, left = unpack_from(_MORE, data, i)
                i += calcsize(_MORE)
            data = data[i:]
            part = 0
            while left > 0:
                part += 1
                chunk = self._read("%s.%d" % (name, part))
                if not chunk:
                    break
                left -= len(chunk)
                data += chunk
            if not left:
                return flags, packet_id, order, lifetime, data[:k], data[k:]
        if data != b"":
            self.torn += 1
        return None

    def load(self, slot):
        message = self.message(slot)
        return message[4:] if message else (b"", b"")

    def tombstone(self, slot):
        self._write_raw(self._name(slot), b"\0")
        self._free_chunk(slot)

    def _free_chunk(self, slot):
        if slot in self._large:
            self._large.remove(slot)
            try:
                self._write_raw(self._name(slot) + ".1", b"")
            except StoreError:  # the message is gone all the same; restore() tries again
                pass

    def restore(self, names):
        """Returns what is stored, as in store.py. names: of all files, as FOLDER/FILE. Raises StoreError."""
        found = []
        changes = {}
        i = 2 + len(self._prefix)
        for name in names:
            if name[2:i] != self._prefix:
                continue
            if name[-1] == "r":
                data = self._read(name)
                if data:
                    order, rank, flags = unpack(_CHANGE, data)
                    changes[order] = rank, flags
                    self._order = max(self._order, order)
            elif name[i:].isdigit():
                slot = int(name[i:])
                message = self.message(slot)
                if message:
                    if slot >= self.slots:
                        raise StoreError("%s has messages in slots above %d" % (self._path, self.slots))
                    flags, packet_id, order, lifetime = message[:4]
                    self._order = max(self._order, order)
                    found.append((order, slot, packet_id, flags, lifetime))
        live = [message[1] for message in found]
        for name in names:
            if name[2:i] == self._prefix and name[-2:] == ".1" and name[i:-2].isdigit():
                if os.stat(self._path + name)[6] > self._chunk:
                    slot = int(name[i:-2])
                    self._large.append(slot)
                    if slot not in live:
                        self._free_chunk(slot)
        found.sort()
        result = []
        for order, slot, packet_id, flags, lifetime in found:
            rank, flags = changes.get(order, (0, flags))
            result.append((slot, packet_id, flags, rank, lifetime))
        return result


class FlashStore(Box):
    """Keeps messages in flash, in the folder `path`: up to `slots` outbound ones, and as many inbound ones at QoS 2.

    chunk: the most bytes of a file; larger messages take several files. On littlefs, choose the largest size at which
    a file needs no block of its own: 120 suits any port, 504 a port whose program size is 256 (rp2). torn: number of
    damaged files that were found and ignored. Its methods raise StoreError.
    """

    def __init__(self, path, slots=32, chunk=120):
        Box.__init__(self, path, "", slots, chunk)
        self.inbound = self._session = None

    def restore(self):
        self._session = (self._read("session") or b"").decode() or None
        names = []
        for folder in range(_FOLDERS):
            try:
                names += ["%d/%s" % (folder, name) for name in os.listdir("%s%d" % (self._path, folder))]
            except OSError as error:
                if error.errno != _ENOENT:
                    raise StoreError("cannot list %s: %s" % (self._path, error))
        inbound = Box(self._path[:-1], "i", self.slots, self._chunk)
        self.inbound = Inbound(inbound, names)
        self.torn += inbound.torn
        return Box.restore(self, names)

    def change(self, slot, flags, rank):
        message = self.message(slot)  # its order is not in RAM: only QoS 2 needs it
        if message:
            self._write(self._name(slot) + "r", pack(_CHANGE, message[2], rank, flags))

    @property
    def session(self):
        return self._session

    @session.setter
    def session(self, name):
        self._write("session", (name or "").encode())
        self._session = name


class Inbound:
    """Keeps inbound messages at QoS 2 in a Box, with the methods of qos2.MemoryInbound."""

    def __init__(self, box, names=()):
        self._box = box
        self._slot_of = {entry[1]: entry[0] for entry in box.restore(names)}

    def ids(self):
        return list(self._slot_of)

    def room(self):
        return self._box.slots - len(self._slot_of)

    def put(self, packet_id, flags, topic, payload):
        box = self._box
        used = self._slot_of.values()
        for slot in range(box.slots):
            if slot not in used:
                box.put(slot, packet_id, flags, topic, payload)
                self._slot_of[packet_id] = slot
                return
        raise StoreError("no room inbound")

    def get(self, packet_id):
        slot = self._slot_of.get(packet_id)
        if slot is None:
            return None
        message = self._box.message(slot)
        return message and (message[0], message[4], message[5])

    def tombstone(self, packet_id):
        self._box.tombstone(self._slot_of[packet_id])
        del self._slot_of[packet_id]
