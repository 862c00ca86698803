"""FlashStore keeps messages over a power cut: in small files, on littlefs, FAT or a host's file system.

Layout of the folder `path`. Place N is in its folder N % 8. A file begins with the CRC-32 of the rest of it; numbers
are little-endian.
    N       place N: format B, flags B, packet id H, order I, length of the topic name H; in format 2 also lifetime I
            (seconds, 0: for ever) and bytes in the chunks I; topic and payload. Or one byte, a tombstone: it is free
    N.1 ..  chunks: the rest of a message that is too large for one file
    Nr      what change() stored: order I (of the message it belongs to), rank I, flags B
    Nm      the same, with the mark of a message that awaits PUBCOMP: its Nr must not be lost
    iN ..   inbound messages at QoS 2, in the same formats
    session the name of the broker whose session this is; it lies in `path` itself

Why power cuts are safe, even where open("wb") truncates first: a file is only written while nothing depends on its old
content. The chunks of a message are written before its place, and a place is written while it is free. A changed state
has a file of its own, Nr, which counts only for the message with the same order: no order is used twice.

Wear: littlefs keeps a small file in the log of its folder, and erases a block whenever the log is full: once for about
4 KB written, less the size of the files that are kept. So files are rewritten and not removed, and the kept files are
spread over eight folders. A folder takes two blocks, so it is made only when it is needed. A chunk with blocks of its
own (_MOST_CHUNKS) gives them back when its place becomes free: its file is emptied then, or by restore() if the power
was cut before.

Memory: only the oldest messages have slots, `index` of them. The others wait in flash, in order, and follow as these go
out: backlog.py, which opens the folder, finds them. So a store opens in the same memory whatever it holds. A message in
slot N lies in place N, or in the lowest free place: wear grows with the number of places in use.
"""

from binascii import crc32
from struct import calcsize, pack, unpack, unpack_from

from ._platform import const, load
from .errors import StoreError
from .packets import AWAIT_PUBCOMP, STATE
from .store import STRIKES_AT

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
_NONE = const(0xFFFF)  # no place
HAS_LIFETIME = const(0x20)  # in the list of the next messages; stored flags do not use this bit


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


def has_bit(bits, place):
    return place >> 3 < len(bits) and bits[place >> 3] >> (place & 7) & 1


def set_bit(bits, place):
    i = place >> 3
    if i >= len(bits):
        bits.extend(bytes(i + 1 - len(bits)))
    bits[i] |= 1 << (place & 7)


class Box:
    """Numbered places in the folder path. prefix: of their files' names; chunk: the most bytes of a file.

    taken: restore() has returned all messages up to this order. used: a bit for each place that holds a message;
    changed: for each that had a file Nr when the store was opened.
    """

    on_progress = None
    folders = _FOLDERS
    change_bytes = calcsize(_CHANGE) + 4

    def __init__(self, path, prefix, slots, chunk):
        self._path = path + "/"
        self._prefix = prefix
        self._chunk = chunk
        self._order = self.taken = 0
        self.slots = slots
        self.torn = 0
        self.used = bytearray()
        self.changed = bytearray()
        self._low = 0  # no byte of `used` before this one has a free bit
        self._large = []  # places whose first chunk has blocks of its own

    def is_used(self, place):
        return has_bit(self.used, place)

    def set_used(self, place, used):
        if used:
            set_bit(self.used, place)
        elif has_bit(self.used, place):
            i = place >> 3
            self.used[i] &= ~(1 << (place & 7))
            self._low = min(self._low, i)

    def free_place(self):
        """Returns the lowest place that is free."""
        used = self.used
        i = self._low
        while i < len(used) and used[i] == 255:
            i += 1
        self._low = i
        place = 8 * i
        while self.is_used(place):
            place += 1
        return place

    def _name(self, place):
        return "%d/%s%d" % (place % _FOLDERS, self._prefix, place)

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

    def put(self, place, packet_id, flags, topic, payload, lifetime=0):
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
            if place not in self._large:
                self._large.append(place)
        name = self._name(place)
        part = 0
        try:
            while i < n:
                part += 1
                self._write("%s.%d" % (name, part), body[i : i + step])
                i += step
            self._write(name, head, first)  # last: now the message is stored
        except StoreError:
            self._free_chunk(place)
            raise
        self._order = order
        self.set_used(place, True)

    def head(self, name, data, i):
        """Returns (flags, packet_id, order, length of the topic, lifetime, bytes in the chunks, offset of the topic).

        data[i]: the first byte of what the file `name` holds. Raises StoreError if another version of this library
        wrote it.
        """
        kind = data[i]
        if not 0 < kind <= _LONG:
            raise StoreError("%s%s has format %d: left as it is" % (self._path, name, kind))
        _, flags, packet_id, order, k = unpack_from(_HEAD, data, i)
        i += calcsize(_HEAD)
        lifetime = left = 0
        if kind == _LONG:
            lifetime, left = unpack_from(_MORE, data, i)
            i += calcsize(_MORE)
        return flags, packet_id, order, k, lifetime, left, i

    def message(self, place):
        """Returns (flags, packet_id, order, lifetime, topic, payload), or None if the place is free or torn.

        Raises StoreError if it cannot be read, or if another version of this library wrote it.
        """
        name = self._name(place)
        data = self._read(name)
        if data:
            flags, packet_id, order, k, lifetime, left, i = self.head(name, data, 0)
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

    def tombstone(self, place):
        self._write_raw(self._name(place), b"\0")
        self.set_used(place, False)
        self._free_chunk(place)

    def _free_chunk(self, place):
        if place in self._large:
            self._large.remove(place)
            try:
                self._write_raw(self._name(place) + ".1", b"")
            except StoreError:  # the message is gone all the same; restore() tries again
                pass


class FlashStore(Box):
    """Keeps messages in flash, in the folder `path`: up to `slots` outbound ones, and as many inbound ones at QoS 2.

    chunk: the most bytes of a file; larger messages take several files. On littlefs, choose the largest size at which
    a file needs no block of its own: 120 suits any port, 504 a port whose program size is 256 (rp2). index: how many
    messages have their place in the index in RAM, None: as many as the free heap allows. on_progress(): called now and
    then while the store is opened, for instance to feed a watchdog. torn: number of damaged files that were found and
    ignored. inbound: whether messages that arrive at QoS 2 are kept. If the folder holds more than `slots` messages,
    they go out first; until then, `slots` is larger by their number. Its methods raise StoreError.
    """

    def __init__(self, path, slots=32, chunk=120, index=None, on_progress=None, inbound=True):
        Box.__init__(self, path, "", slots, chunk)
        self.inbound = inbound
        self._session = None
        self._most = index
        self.on_progress = on_progress
        self._wanted = slots
        self._stored = self.more = self.last_id = 0
        self._listed = None  # (places, packet ids, flags) of the messages that follow, of which the outbox has _given

    def restore(self, more=False):
        if not more:
            load("backlog").open_store(self)
        elif not self._listed and self.more:
            load("backlog").scan(self)
        if not self._listed:
            return ()
        free = sum([1 for place in self._places if place == _NONE])
        n = min(free, len(self._listed[0]) - self._given)
        self.more -= n
        return self._give_slots(n) if n else ()

    def _give_slots(self, n):
        places = self._places
        free = 0
        for _ in range(n):
            i = self._given
            self._given += 1
            place = self._listed[0][i]
            packet_id = self._listed[1][i]
            flags = self._listed[2][i]
            rank = lifetime = 0
            if flags & HAS_LIFETIME or has_bit(self.changed, place):
                flags &= ~HAS_LIFETIME
                message = self.message(place)
                lifetime = message[3] if message else 0
                change = self._read(self._name(place) + "r")
                if change and message and unpack_from("<I", change)[0] == message[2]:
                    _, rank, flags = unpack(_CHANGE, change)
                    mark = flags & STATE == AWAIT_PUBCOMP and self._read(self._name(place) + "m")
                    if mark and unpack_from("<I", mark)[0] == message[2]:
                        rank |= unpack(_CHANGE, mark)[1]
            slot = place
            if place >= len(places) or places[place] != _NONE:
                while places[free] != _NONE:
                    free += 1
                slot = free
            places[slot] = place
            if self._given == len(self._listed[0]):
                self._listed = None
            yield slot, packet_id, flags, rank, lifetime

    def put(self, slot, packet_id, flags, topic, payload, lifetime=0):
        if slot is None:
            Box.put(self, self.free_place(), packet_id, flags, topic, payload, lifetime)
            self._stored += 1
            self.more += 1
            return
        place = self._places[slot]
        new = place == _NONE
        if new:
            place = self.free_place() if self.is_used(slot) else slot
        Box.put(self, place, packet_id, flags, topic, payload, lifetime)
        self.taken = self._order  # nothing that is older waits outside the index
        self._places[slot] = place
        self._stored += new

    def load(self, slot):
        message = self.message(self._places[slot])
        return message[4:] if message else (b"", b"")

    def change(self, slot, flags, rank):
        place = self._places[slot]
        message = self.message(place)  # its order is not in RAM: only QoS 2 needs it
        if message:
            kind = "m" if rank >> STRIKES_AT else "r"
            self._write(self._name(place) + kind, pack(_CHANGE, message[2], rank, flags))
            set_bit(self.changed, place)

    def tombstone(self, slot):
        Box.tombstone(self, self._places[slot])
        self._places[slot] = _NONE
        self._stored -= 1
        if self._stored <= self._wanted:
            self.slots = self._wanted

    @property
    def session(self):
        return self._session

    @session.setter
    def session(self, name):
        self._write("session", (name or "").encode())
        self._session = name
