# Publishes over a serial line and waits for its own messages: reads JSON {"tty", "count", "examples", "keeps"}.
# examples: the folder of the transport, if it is not umqtt_robust.serial. keeps: at QoS 2, with a persistent session.
# The terminal is raw, and reading it returns at once, like machine.UART with timeout=0, which no host has.
import json
import sys

config = json.loads(sys.stdin.readline())
if "examples" in config:
    sys.path.insert(0, config["examples"])
    from uart_transport import Serial
else:
    from umqtt_robust.serial import Serial

from umqtt_robust import Client  # noqa: E402

uart = open(config["tty"], "r+b", 0)  # noqa: SIM115
came = []
qos = 2 if config.get("keeps") else 1  # when links break, only QoS 2 delivers once
client = Client(
    "serial", "mqtt://uart", transports={"mqtt": lambda *_: Serial(uart)}, random=lambda n: 0, clean_session=qos == 1
)
client.on_message = lambda topic, payload: came.append(payload)
client.subscribe("serial", qos)
sent = 0
polls = 0
while len(came) < config["count"] or client.pending:
    if client.subscribed and client.connected and sent < config["count"] and client.pending < 16:
        client.publish("serial", b"%03d " % sent + b"s" * 200, qos)
        sent += 1
        if sent == config["count"] // 2:
            print(json.dumps({"event": "half"}))
    client.poll(1000)
    polls += 1
assert came == [b"%03d " % i + b"s" * 200 for i in range(config["count"])]
client.disconnect()
client.tick()
print(json.dumps({"event": "done", "polls": polls}))
