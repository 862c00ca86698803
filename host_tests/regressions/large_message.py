# Runs on MicroPython with a small heap: messages of 100 KB arrive in pieces and leave no trace in memory.
import gc

from umqtt_robust import Client

SIZE = 100 * 1024


class Stream:
    """A transport whose broker sends one message of SIZE bytes at each QoS, generated while it is read."""

    socket = None

    def __init__(self, host, port, path):
        self.heads = [b"\x20\x02\x00\x00"]
        for qos in range(3):
            length = SIZE + 3 + (2 if qos else 0)
            head = bytes((0x30 | qos << 1, length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
            self.heads.append(head + b"\0\1t" + (b"\0\7" if qos else b""))
        self.heads.append(b"\x62\x02\0\7\x30\x04\0\1sx")
        self.left = 0
        self.answers = bytearray()

    def ready(self):
        return True

    def read(self, buf, offset):
        if not self.answers:
            return None
        n = len(buf) - offset
        if self.left:
            n = min(n, self.left)
            for i in range(n):
                buf[offset + i] = (SIZE - self.left + i) & 255
            self.left -= n
            return n
        if not self.heads:
            return None
        head = self.heads.pop(0)
        buf[offset : offset + len(head)] = head
        if head[0] & 0xF0 == 0x30 and len(head) > 6:
            self.left = SIZE
        return len(head)

    def write(self, buf, offset, size):
        self.answers += buf[offset : offset + size]
        return size

    def close(self):
        pass


def run(handler):
    gc.collect()
    client = Client(b"c", "mqtt://h", keep_alive=0, rx_size=256, random=lambda n: 0, transports={"mqtt": Stream})
    client.on_large = handler
    last = []
    client.on_message = lambda topic, payload: last.append((topic, payload))
    ticks = 0
    while not last:
        client.tick()
        ticks += 1
        assert ticks < 20000, "it hangs"
    assert client.connected and last == [(b"s", b"x")], last
    answers = bytes(client.transport.answers)
    assert answers[-12:] == b"\x40\x02\0\7\x50\x02\0\7\x70\x02\0\7", answers
    return client


seen = []


def take(topic, offset, size, chunk):
    assert topic == b"t" and size == SIZE
    if offset == 0:
        seen.append(0)
    assert seen[-1] == offset
    for i in range(len(chunk)):
        assert chunk[i] == (offset + i) & 255
    seen[-1] += len(chunk)


client = run(take)
assert seen == [SIZE] * 3, seen
assert client.too_large == 0
client = None
client = run(None)
assert client.too_large == 3
gc.collect()
print("whole", gc.mem_free() + gc.mem_alloc())
