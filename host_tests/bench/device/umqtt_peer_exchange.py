"""umqtt.simple; see ours_exchange.py."""

import sys

from umqtt.simple import MQTTClient

TOPIC = b"bench/exchange-peer"
count = int(sys.argv[2])
payload = bytes(256)
got = 0


def handler(topic, payload):
    global got
    got += len(payload) == 256


client = MQTTClient(b"bench-peer", "127.0.0.1", int(sys.argv[1]), keepalive=60)
client.set_callback(handler)
client.connect()
client.subscribe(TOPIC, 1)
for n in range(count):
    client.publish(TOPIC, payload, False, 1)
    while got <= n:
        client.wait_msg()
print('{"exchanged":', got, "}")
