# Publishes at QoS 0 as fast as the link takes it, on either interpreter: reads JSON {"url", "tls", "count"}.
import json
import sys

from umqtt_robust import Client
from umqtt_robust.tls import TLS

config = json.loads(sys.stdin.readline())
client = Client("flood", config["url"], transports={"mqtts": TLS(**config["tls"])}, random=lambda n: 0)
sent = refused = 0
lost = []
client.on_disconnect = lost.append
while (sent < config["count"] or client.waits()) and not lost:
    if client.connected and sent < config["count"]:
        if client.publish("t", b"%06d" % sent + b"y" * 20000) is None:
            refused += 1
            client.poll(100)
        else:
            sent += 1
    else:
        client.poll(100)
print(json.dumps({"event": "stopped" if lost else "done", "refused": refused, "lost": str(lost)}))
