"""A transport in memory, connected to a broker, that breaks where the test says."""


class PowerCut(BaseException):
    """A stop of the device at this point. Not an Exception: no handler of the library or the program may catch it."""


class Wire:
    """A wire; see umqtt_robust/transport.py for the interface of a transport.

    cut_up, cut_down: the link breaks after so many bytes towards the broker or the client, and bytes under way are
    lost. power: then the device's power fails too. piece: at most so many bytes per read and write.
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
        self.down = bytearray()  # a bytearray, so that a flood of messages is not copied whole at each of them
        self.sent_down = 0
        self.recorded = []  # (bytes up when it was sent, data), everything from the broker
        self.arrivals = []  # (bytes down, function): called when the client has read that far
        self.alive = True
        self.mute = False  # it takes bytes and delivers none
        self.full = False  # it takes no bytes
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
            return n  # the kernel took them all, the network did not
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
        """Send data from the broker. arrived(): called when the client has read all of it."""
        if self.alive:
            self.down += data
            self.sent_down += len(data)
            self.recorded.append((self.up, data))
            if arrived:
                self.arrivals.append((self.sent_down, arrived))

    def setblocking(self, flag):
        """As of a socket, for the drop-in."""
        assert not flag

    def wait(self, ms, writing):
        """Return at once: time is virtual."""

    def close(self):
        self.closed = True
        self.break_now()
