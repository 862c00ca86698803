"""Exercises everything that the smallest useful set of modules is for. argv[1] is a folder with just that set.

Connects, subscribes, sends itself messages at QoS 0 and 1, loses the link because nothing answers, and does it again
on a new one. Prints JSON: links lost, messages received, modules of the library in use.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

from umqtt_robust import Client


class Echo:
    """A link to a broker that sends every message back; it does not answer PINGREQ."""

    socket = None

    def __init__(self, host, port):
        self.inbound = b""

    def ready(self):
        return True

    def read(self, buf, offset):
        n = len(self.inbound)
        buf[offset : offset + n] = self.inbound
        self.inbound = b""
        return n or None

    def write(self, buf, offset, size):
        data = bytes(buf[offset : offset + size])
        while data:
            n = 2 + data[1]
            packet = data[:n]
            data = data[n:]
            if packet[0] == 0x10:
                self.inbound += b"\x20\x02\x00\x00"
            elif packet[0] == 0x82:
                self.inbound += bytes((0x90, 3, packet[2], packet[3], 1))
            elif packet[0] & 0xF0 == 0x30:
                if packet[0] & 6:
                    self.inbound += b"\x40\x02" + packet[7:9]  # after the topic name, three characters
                self.inbound += packet
        return size

    def close(self):
        pass


now = [0]
got = []
client = Client("c", "mqtt://host", ticks=lambda: now[0], random=lambda n: 0)
client.servers[0] = (Echo, ("host", 1883), "host:1883")
client.on("a/b", lambda topic, payload: got.append(payload))
client.subscribe("a/b", 1)
for link in range(2):
    while not client.connected or not client.subscribed:
        client.tick()
        now[0] += 100
    client.publish("a/b", "0")
    client.publish("a/b", b"1", 1)
    while client.pending or len(got) < 2 * link + 2:
        client.tick()
    while client.connected:
        now[0] += 1000
        client.tick()
modules = [name for name in sys.modules if name.split(".")[0] == "umqtt_robust"]
print(json.dumps({"lost": client.reconnects, "received": len(got), "modules": sorted(modules)}))
