"""MQTT over a serial line that may lose, garble or repeat bytes; `umqtt serial` is the other end.

from umqtt_robust.serial import Serial

uart = machine.UART(1, 115200, timeout=0)  # timeout=0: read and write return at once
Client("pump-7", "mqtt://line", transports={"mqtt": lambda host, port, path: Serial(uart)})

A frame is 0x7e, kind (with bit 7 from the computer), link (2 bytes, little endian), number, size (0 to 240), payload,
CRC-32 of all but the first byte (4 bytes, little endian). In each direction one DATA frame is unacknowledged at a time:
it is sent again until an ACK has its number. ACK is sent when the payload has been taken, which is the flow control.
Without RTS and CTS, a board misses bytes while it erases flash, which only costs time.
"""

import errno
import os
import select
from binascii import crc32

from ._platform import const, poll, ticks_diff, ticks_ms

# OPEN is answered with OPENED, DATA with ACK. CLOSE of a link: it does not exist, or no longer; of ANY: no link does.
OPEN = const(1)
OPENED = const(2)
DATA = const(3)
ACK = const(4)
CLOSE = const(5)
ANY = const(0)
_FROM_COMPUTER = const(0x80)
_START = const(0x7E)
_HEAD = const(6)
_MOST = const(240)
_LARGEST = const(250)


class Line:
    """Frames over a UART. resend_ms: wait for an answer, at least twice the time that 250 bytes take on the line.
    on_computer: which end this is; frames of the same end, which a line with echo brings, are ignored.

    link: number of the link, None without one. event: kind of the last frame that the caller has to handle, 0 for none;
    new_link: number of the link that an OPEN asks for.
    """

    def __init__(self, uart, resend_ms=300, clock=ticks_ms, on_computer=False):
        self._uart = uart
        self._any = getattr(uart, "any", None)  # a computer's port has none
        self._end_bit = _FROM_COMPUTER if on_computer else 0
        self._resend = resend_ms
        self._clock = clock
        self._rx = bytearray(_LARGEST)
        self._tx = bytearray(_LARGEST)  # the frame that waits for its answer
        self._got = bytearray(_MOST)  # the payload that came last
        self._short = bytearray(_HEAD + 4)  # a frame that needs no answer
        self._end = 0  # of the bytes received
        self._came = self._went = clock()
        self.new_link = None
        self.begin(None)

    def begin(self, link):
        """Begins a link with this number; None: ends the link."""
        self.link = link
        self.event = 0
        self._size = self._sent = 0  # of the frame that waits; 0: none
        self._rest = 0  # bytes of the short frame that were not written
        self._out = self._in = 0  # number of the next DATA
        self._at = self._left = 0  # how much of the payload was taken, and how much was not

    @property
    def busy(self):
        """Whether a frame waits for its answer: nothing else can be sent meanwhile."""
        return self._size > 0

    def send(self, kind, buf=b"", offset=0, size=0):
        """Send a frame that needs an answer. Returns how many bytes of buf[offset:][:size] are in it."""
        size = min(size, _MOST)
        self._tx[_HEAD : _HEAD + size] = memoryview(buf)[offset : offset + size]
        self._size = _seal(self._tx, kind | self._end_bit, self.link, self._out, size)
        self._kind = kind
        self._sent = 0
        self.flush()
        return size

    def say(self, kind, link, number=0):
        """Send a frame that needs no answer. Dropped while another is being written: what it answers comes again."""
        if self._rest in (0, len(self._short)):
            self._rest = _seal(self._short, kind | self._end_bit, link, number, 0)
            self.flush()

    def take(self, buf, offset):
        """Copy received payload into buf[offset:]. Returns how many bytes were copied, 0 if there are none."""
        n = min(len(buf) - offset, self._left)
        if n:
            memoryview(buf)[offset : offset + n] = memoryview(self._got)[self._at : self._at + n]
            self._at += n
            self._left -= n
            if not self._left:
                self._in = self._in + 1 & 255
                self.say(ACK, self.link, self._in - 1 & 255)
        return n

    def pump(self):
        """Read and handle frames until there is an event, and write what waits. Raises OSError."""
        self.flush()
        while not self.event:
            size = self._whole()
            if size:
                self._handle()
                self._drop(size)
                continue
            # On rp2 a read of more than there is waits for up to 1 ms, whatever the UART's timeout.
            n = self._any() if self._any else _LARGEST
            if n:
                n = self._uart.readinto(memoryview(self._rx)[self._end : self._end + n])
            if n:
                self._end += n
                self._came = self._clock()
            elif self._end and ticks_diff(self._clock(), self._came) * 2 >= self._resend:
                self._drop(1)  # a beginning without the rest is no frame
            else:
                break

    def flush(self):
        """Write what waits, as far as the UART takes it. A frame whose answer is late is sent again."""
        if self._sent >= self._size or not self._sent:
            if self._rest:
                at = len(self._short) - self._rest
                self._rest -= self._uart.write(memoryview(self._short)[at:]) or 0
                if self._rest:
                    return
            if self._sent and ticks_diff(self._clock(), self._went) >= self._resend:
                self._sent = 0
        if self._sent < self._size:
            self._sent += self._uart.write(memoryview(self._tx)[self._sent : self._size]) or 0
            self._went = self._clock()

    def due(self):
        """Return the ms until a frame has to be sent again, or None if no answer is awaited."""
        if self._size:
            return max(self._resend - ticks_diff(self._clock(), self._went), 0)
        return None

    def writing(self):
        """Return True while the UART has not taken all of a frame."""
        return self._rest > 0 or self._sent < self._size

    def _whole(self):
        # Returns the size of the frame at the start of rx, 0 if none is complete. Drops bytes that are no frame.
        rx = self._rx
        while self._end:
            if rx[0] == _START:
                if self._end < _HEAD:
                    return 0
                size = _HEAD + rx[5] + 4
                if rx[5] <= _MOST:
                    if self._end < size:
                        return 0
                    if bytes(memoryview(rx)[size - 4 : size]) == _crc(rx, size - 4):
                        return size
            self._drop(1)
        return 0

    def _drop(self, count):
        # Drops `count` bytes, and more up to the next possible start of a frame.
        rx = self._rx
        while count < self._end and rx[count] != _START:
            count += 1
        self._end -= count
        rx[: self._end] = bytes(memoryview(rx)[count : count + self._end])

    def _handle(self):
        rx = self._rx
        kind = rx[1] ^ self._end_bit ^ _FROM_COMPUTER  # frames of the own end match no kind
        link = rx[2] | rx[3] << 8
        number = rx[4]
        waits = self._size and self._kind
        if kind == OPEN:
            self.new_link = link
            self.event = kind
        elif kind == CLOSE:
            # A computer that has just started closes all earlier links, but not one whose OPEN still waits.
            if link == self.link or link == ANY and waits != OPEN:
                self.event = kind
        elif link != self.link:
            if kind == DATA:
                self.say(CLOSE, link)
        elif kind == DATA:
            if number == self._in:
                if not self._left:
                    self._at = 0
                    self._left = rx[5]
                    self._got[: rx[5]] = memoryview(rx)[_HEAD : _HEAD + rx[5]]
            elif number == (self._in - 1 & 255):
                self.say(ACK, link, number)
        elif kind == ACK:
            if waits == DATA and number == self._out:
                self._size = self._sent = 0
                self._out = number + 1 & 255
        elif kind == OPENED:
            if waits == OPEN:
                self._size = self._sent = 0
                self.event = kind


class Serial(Line):
    """A transport (see transport.py) over a UART whose other end is `umqtt serial`."""

    def __init__(self, uart, resend_ms=300, clock=ticks_ms):
        super().__init__(uart, resend_ms, clock)
        self.socket = uart
        self._open = False
        self._poller = poll()
        self._poller.register(uart, select.POLLIN)
        self.begin(int.from_bytes(os.urandom(2), "little") or 1)
        self.send(OPEN)

    def ready(self):
        """Return True once the link is open. Raises OSError if the other end has no broker."""
        if not self._open:
            self.pump()
            if self.event == CLOSE:
                raise OSError(errno.ECONNREFUSED)
            self._open = self.event == OPENED
            self.event = 0
        return self._open

    def read(self, buf, offset):
        self.pump()
        return self.take(buf, offset) or (0 if self.event == CLOSE else None)

    def write(self, buf, offset, size):
        self.pump()
        return None if self._size else self.send(DATA, buf, offset, size)

    def wait(self, ms, writing):
        due = self.due()
        if due is None:
            if writing:
                return
        else:
            ms = min(ms, due)
        self._poller.modify(self.socket, select.POLLIN | (select.POLLOUT if self.writing() else 0))
        for _ in self._poller.ipoll(ms):
            pass

    def close(self):
        """Close the link, not the UART. If CLOSE is lost, the other end gets another one for its next DATA."""
        try:
            self._size = 0
            self.say(CLOSE, self.link)
        except OSError:
            pass  # it is gone either way


def _seal(frame, kind, link, number, size):
    frame[0] = _START
    frame[1] = kind
    frame[2] = link & 255
    frame[3] = link >> 8
    frame[4] = number
    frame[5] = size
    end = _HEAD + size
    frame[end : end + 4] = _crc(frame, end)
    return end + 4


def _crc(frame, end):
    return crc32(memoryview(frame)[1:end]).to_bytes(4, "little")
