"""Stores in flash the commands that this board has begun, so that a repeated one is known even after a reboot.

The folder `path` holds a ring of `size` commands, each in two small files. Numbers are little-endian; each file
begins with the CRC-32 of the rest:

    N     the command: order I, then its payload, NUL, and the CRC-32 of the ids of the three commands that were in N
          before it, the newest first. Written before it is carried out.
    Nr    its reply: order I, then the reply's JSON. Written when it is done.
    sent  order I: the broker has the replies of all commands up to this one.
    c0 c1 an unused I, then Q, the counter of a signed command: the higher one counts, the lower one is overwritten.

A file is only overwritten when its old content is not needed: N and Nr when the ring comes round to a command whose
reply the broker has (the CRC and the order tell an old or torn reply from this command's). A torn `sent` means
that the stored replies are sent once more.
"""

import json
import os
from binascii import crc32
from struct import pack, unpack_from

SIZE = 16
# After a failure, a broker may send again more than SIZE commands that were carried out. So the ids of older ones are
# kept too, at no additional write.
_OLDER = 3
_NONE = b"\0" * (4 * _OLDER)


class Full(Exception):
    """Every place of the ring holds a command whose reply the broker does not have yet."""


class Ledger:
    """The stored commands and replies. Every method that writes raises OSError if that fails."""

    def __init__(self, path, size=SIZE):
        self._path = path + "/"
        self._size = size
        self._ids = {}  # id: order
        self._older = [_NONE] * size
        self._open = []  # orders of commands without a reply
        self._waiting = []  # orders whose reply the broker does not have
        self._publishing = {}  # order: packet id of the reply in the outbox
        try:
            os.mkdir(path)
        except OSError:
            pass  # it exists; if it could not be made, writing into it fails and says so
        data = self._read("sent")
        self._sent = unpack_from("<I", data)[0] if data and len(data) == 4 else 0
        self.order = self._sent
        self._counters = [self._counter("c0"), self._counter("c1")]
        orders = []
        for n in range(size):
            data = self._read("%d" % n)
            if data and len(data) > 4:
                orders.append((unpack_from("<I", data)[0], n))
                self._older[n] = _split(data)[1]
        for order, n in sorted(orders):
            self.order = max(self.order, order)
            self._ids[self.command(order).get("id")] = order
            reply = self._read("%dr" % n)
            if not reply or unpack_from("<I", reply)[0] != order:
                self._open.append(order)
            elif order > self._sent:
                self._waiting.append(order)

    def find(self, command_id):
        """Return the order of the command with that id, or None."""
        return self._ids.get(command_id)

    def was_done(self, command_id):
        """Return True if a command with that id was carried out whose payload and reply are gone."""
        checksum = _checksum(command_id)
        for older in self._older:
            for at in range(0, len(older), 4):
                if older[at : at + 4] == checksum:
                    return True
        return False

    def command(self, order):
        """Return the command as it was received, a dict; {} if its file is missing or damaged."""
        data = self._read("%d" % (order % self._size))
        try:
            return json.loads(_split(data)[0]) if data and unpack_from("<I", data)[0] == order else {}
        except ValueError:
            return {}

    @property
    def busy(self):
        """True while a command has no reply, or the broker does not have it."""
        return bool(self._open or self._waiting)

    @property
    def waits(self):
        """True if there is no place for another command until the broker has the reply to an earlier one."""
        return self.order + 1 - self._size in self._waiting

    def is_open(self, order):
        return order in self._open

    def open(self):
        """Return the orders of the commands without a reply; at a start, those that the last run left open."""
        return list(self._open)

    def begin(self, command_id, payload):
        """Store a command before it is carried out. Returns its order. Raises Full and OSError."""
        order = self.order + 1
        oldest = order - self._size
        if oldest in self._open or oldest in self._waiting:
            raise Full
        # Forget the oldest in RAM first: its file is about to be overwritten.
        n = order % self._size
        for known in self._ids:
            if self._ids[known] == oldest:
                del self._ids[known]
                self._older[n] = _checksum(known) + self._older[n][:-4]
                break
        self._write("%d" % n, order, bytes(payload) + b"\0" + self._older[n])
        self.order = order
        self._ids[command_id] = order
        self._open.append(order)
        return order

    @property
    def counter(self):
        """The highest counter of a signed command so far."""
        return max(self._counters)

    def use(self, counter):
        """Store a counter that is higher than all so far, before its command is carried out."""
        n = self._counters.index(min(self._counters))
        self._write("c%d" % n, 0, pack("<Q", counter))
        self._counters[n] = counter

    def finish(self, order, reply):
        """Store the reply of a finished command, for next_reply(). reply: bytes."""
        self._write("%dr" % (order % self._size), order, reply)
        self._open.remove(order)
        self._waiting.append(order)

    def reply(self, order):
        """Return the reply to a command; b"" if it has none yet, or if that is damaged."""
        data = self._read("%dr" % (order % self._size))
        return data[4:] if data and order not in self._open else b""

    def next_reply(self):
        """Return (order, reply) of a reply that is not in the outbox yet, or None."""
        for order in self._waiting:
            if order not in self._publishing:
                return order, self.reply(order)
        return None

    def publishing(self, order, packet_id):
        """Note that the outbox has the reply, under that packet id."""
        self._publishing[order] = packet_id

    def dropped(self, packet_id):
        """Handle a message that the outbox dropped: if it was a reply, it is sent again."""
        for order in self._publishing:
            if self._publishing[order] == packet_id:
                del self._publishing[order]
                return

    def settle(self, is_pending):
        """Forget the replies that the broker has acknowledged. is_pending(packet_id): True while in the outbox."""
        if not self._publishing:
            return
        for order in list(self._publishing):
            if not is_pending(self._publishing[order]):
                del self._publishing[order]
                self._waiting.remove(order)
        # Up to the first command that is open or whose reply the broker does not have.
        sent = min(self._open + self._waiting + [self.order + 1]) - 1
        if sent > self._sent:
            self._write("sent", sent, b"")
            self._sent = sent

    def _counter(self, name):
        data = self._read(name)
        return unpack_from("<Q", data, 4)[0] if data and len(data) == 12 else 0

    def _write(self, name, order, data):
        data = pack("<I", order) + data
        with open(self._path + name, "wb") as file:
            file.write(pack("<I", crc32(data) & 0xFFFFFFFF))
            if file.write(data) != len(data):
                raise OSError(28)
            file.flush()
            if hasattr(os, "fsync"):
                os.fsync(file.fileno())

    def _read(self, name):
        # Returns order and data as _write() wrote them, or None if the file is missing or torn.
        try:
            with open(self._path + name, "rb") as file:
                data = file.read()
        except OSError:
            return None
        if len(data) >= 8 and unpack_from("<I", data)[0] == crc32(data[4:]) & 0xFFFFFFFF:
            return data[4:]
        return None


def _checksum(command_id):
    # 0 stands for no id.
    return pack("<I", crc32(str(command_id).encode()) & 0xFFFFFFFF or 1)


def _split(data):
    # Returns (payload, checksums of older ids) of a command's file without its CRC. JSON has no NUL.
    payload, _, older = data[4:].partition(b"\0")
    return payload, older if len(older) == len(_NONE) else _NONE
