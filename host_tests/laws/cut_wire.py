"""A transport in memory, with a broker at its other end, that breaks where the test says."""


class PowerCut(BaseException):
    """The device stops right here. Not an Exception: no handler of the library or the program may catch it."""


class Wire:
    """See umqtt_robust/transport.py for what a transport is.

    cut_up, cut_down: after so many bytes towards the broker or the client the link breaks, and what was on its way
    is gone. power: then the device's power fails too. piece: at most so many bytes a read and a write.
    split_up, split_down: a write or a read ends at this byte, and the next one finds the link busy or empty.
    """

    def __init__(self, broker, cut_up=None, cut_down=None, power=False, piece=None, split_up=0, split_down=0):
        self.broker = broker
        self.cut_up = cut_up
        self.cut_down = cut_down
        self.power = power
        self.piece = piece or 1 << 30
        self.split_up = split_up
        self.split_down = split_down
        self.up = self.down_bytes = 0
        self.down = bytearray()  # a flood of messages is not copied whole at each of them
        self.sent_down = 0
        self.recorded = []  # (bytes up when it was sent, data), everything from the broker
        self.arrivals = []  # (bytes down, function): called when the client has read so far
        self.alive = True
        self.mute = False  # takes bytes and carries none
        self.full = False  # takes no bytes
        self.fin = False  # the broker closed its side
        self.closed = False
        self.socket = self
        broker.accept(self)

    def ready(self):
        return True

    def read(self, buf, offset):
        if not self.alive:
            raise OSError(104)
        if self.mute or not self.down:
            return 0 if self.fin else None
        n = min(len(buf) - offset, len(self.down), self.piece)
        if self.split_down:
            if self.down_bytes == self.split_down:
                self.split_down = 0
                return None
            if self.down_bytes < self.split_down:
                n = min(n, self.split_down - self.down_bytes)
        if self.cut_down is not None:
            n = min(n, self.cut_down - self.down_bytes)
            if n <= 0:
                self._cut()
                raise OSError(104)
        buf[offset : offset + n] = self.down[:n]
        self.down[:n] = b""
        self.down_bytes += n
        while self.arrivals and self.arrivals[0][0] <= self.down_bytes:
            self.arrivals.pop(0)[1]()
        return n

    def write(self, buf, offset, size):
        if not self.alive:
            raise OSError(104)
        if self.full:
            return None
        n = min(size, self.piece)
        if self.split_up:
            if self.up == self.split_up:
                self.split_up = 0
                return None
            if self.up < self.split_up:
                n = min(n, self.split_up - self.up)
        if self.cut_up is not None and self.up + n >= self.cut_up:
            data = bytes(buf[offset : offset + self.cut_up - self.up])
            self.up = self.cut_up
            self.broker.feed(self, data)
            self._cut()
            return n  # the kernel took them all; the network did not
        self.up += n
        if not self.mute:
            self.broker.feed(self, bytes(buf[offset : offset + n]))
        return n

    def _cut(self):
        self.break_now()
        if self.power:
            raise PowerCut

    def break_now(self):
        if self.alive:
            self.alive = False
            self.down = bytearray()
            self.broker.lost(self)

    def send(self, data, arrived=None):
        """From the broker. arrived(): called when the client has read all of it."""
        if self.alive:
            self.down += data
            self.sent_down += len(data)
            self.recorded.append((self.up, data))
            if arrived:
                self.arrivals.append((self.sent_down, arrived))

    def wait(self, ms, writing):
        """Nothing: time is virtual."""

    def close(self):
        self.closed = True
        self.break_now()
