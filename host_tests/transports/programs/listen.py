# Waits for "count" messages, on either interpreter: reads JSON {"url", "tls", "count"}.
import json
import sys

from umqtt_robust import Client
from umqtt_robust.tls import TLS

config = json.loads(sys.stdin.readline())
came = []
client = Client("listener", config["url"], 0, transports={"mqtts": TLS(**config["tls"])}, random=lambda n: 0)
client.on_message = lambda topic, payload: came.append(payload)
while len(came) < config["count"]:
    client.poll(1 << 28)  # longer than any test: it returns when something arrives
print(json.dumps({"event": "done"}))
