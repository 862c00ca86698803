"""Sends itself argv[2] messages of 256 B at QoS 1 through the broker at 127.0.0.1:argv[1], with little heap.

Small buffers and few slots, as a board short of memory has them.
"""

import sys

from umqtt_robust import Client
from umqtt_robust.store import MemoryStore

TOPIC = b"bench/exchange-ours"
count = int(sys.argv[2])
payload = bytes(256)
got = 0


def handler(topic, payload):
    global got
    got += len(payload) == 256


def fail(error):
    raise error


client = Client(b"bench-ours", "mqtt://127.0.0.1:" + sys.argv[1], store=MemoryStore(2), rx_size=320, tx_size=320)
client.on_error = client.on_disconnect = fail
client.on(TOPIC, handler)
client.subscribe(TOPIC, 1)
while not client.connected or not client.subscribed:
    client.poll(1000)
for n in range(count):
    client.publish(TOPIC, payload, 1)
    while client.pending or got <= n:
        client.poll(1000)
print('{"exchanged":', got, "}")
