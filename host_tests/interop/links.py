"""Clients with links that a check can cut at a byte, and waiting for the effects of a real broker."""

# ruff: noqa: UP031 - runs on MicroPython
from umqtt_testkit.portable import WAIT_LIMIT_S

from umqtt_robust import Client
from umqtt_robust._platform import ticks_diff, ticks_ms
from umqtt_robust.transport import TCP

LIMIT_MS = int(1000 * WAIT_LIMIT_S)
versions = [4]  # the clients' option `protocol`


class Link(TCP):
    """A TCP connection that breaks on demand. cut_up: after so many bytes; pongs: PINGRESPs received."""

    cut_up = None
    pongs = 0

    def write(self, buf, offset, size):
        if self.cut_up is not None:
            size = min(size, self.cut_up)
            if not size:
                raise OSError(104, "cut")
        n = TCP.write(self, buf, offset, size)
        if self.cut_up is not None and n:
            self.cut_up -= n
        return n

    def read(self, buf, offset):
        if self.cut_up == 0:
            raise OSError(104, "cut")
        n = TCP.read(self, buf, offset)
        if n == 2 and buf[offset] == 0xD0:
            self.pongs += 1
        return n


class Device:
    """A client and what happened to it. cuts: bytes after which the next links break, None: never."""

    def __init__(self, client_id, *ports, **options):
        self.messages = []
        self.acknowledged = []
        self.connects = []
        self.errors = []
        self.cuts = []
        self.closed_ports = []
        options.setdefault("clean_session", False)
        options.setdefault("protocol", versions[0])
        urls = ["mqtt://127.0.0.1:%d" % port for port in ports]
        self.client = client = Client(
            client_id, urls, random=lambda n: min(n - 1, 30), transports={"mqtt": self._link}, **options
        )
        client.on_message = self._message
        client.on_acknowledged = self.acknowledged.append
        client.on_connect = self.connects.append
        client.on_error = self.errors.append

    def _link(self, host, port, path):
        if port in self.closed_ports:
            raise OSError(111, "closed by the check")
        link = Link(host, port)
        if self.cuts:
            link.cut_up = self.cuts.pop(0)
        return link

    def _message(self, topic, payload):
        self.messages.append((topic, payload))

    @property
    def payloads(self):
        return [payload for _, payload in self.messages]

    def cut(self):
        """Break the link, so that the broker notices."""
        self.client.transport.cut_up = 0

    def up(self):
        client = self.client
        return client.connected and client.subscribed and not client.pending

    def leave(self):
        self.client.disconnect(5000)
        wait(lambda: self.client.closed, self)


def wait(until, *devices):
    """Drive the devices until `until()`. Raises AssertionError after LIMIT_MS."""
    begin = ticks_ms() & 0x3FFFFFFF
    while not until():
        for device in devices:
            device.client.poll(2 if len(devices) > 1 else 50)
        assert ticks_diff(ticks_ms() & 0x3FFFFFFF, begin) < LIMIT_MS, "not within %d ms" % LIMIT_MS


def connected(client_id, *ports, **options):
    """Return a device that is up. subscribe: {topic filter: QoS}."""
    subscribe = options.pop("subscribe", {})
    device = Device(client_id, *ports, **options)
    for topic_filter in subscribe:
        device.client.subscribe(topic_filter, subscribe[topic_filter])
    wait(device.up, device)
    return device


def fresh(client_id, port):
    """Make the broker forget what it knows of a client id."""
    connected(client_id, port, clean_session=True).leave()
