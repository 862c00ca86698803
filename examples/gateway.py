"""Gateway: messages that sensors publish on site reach a distant broker, even after days without an uplink.

A message is acknowledged on site only when it is in the gateway's flash. While the flash is full, the gateway takes
no more, so the broker on site keeps the rest. Each message arrives at least once; if you count readings, give them an
identity (sensor_to_table.py shows how). It runs on a computer or on a board with a large flash, until you stop it.
"""

from umqtt_robust import Client
from umqtt_robust.errors import OutboxFull
from umqtt_robust.flash import FlashStore

ON_SITE = "mqtt://127.0.0.1:1883"
FAR_AWAY = "mqtt://broker.example"
NAME = "gateway-1"
SLOTS = 1000

on_site = Client(NAME, ON_SITE, clean_session=False, manual_ack=True)
far_away = Client(NAME, FAR_AWAY, clean_session=False, store=FlashStore(NAME, slots=SLOTS))
waiting = []  # (packet id, topic, payload): received, not stored yet


def receive(topic, payload):
    waiting.append((on_site.packet_id, topic, payload))


def forward():
    while waiting:
        packet_id, topic, payload = waiting[0]
        try:
            far_away.publish(b"site-1/" + topic, payload, qos=1)  # in flash when this returns
        except OutboxFull:
            return
        waiting.pop(0)
        on_site.acknowledge(packet_id)


on_site.on("sensors/#", receive)
on_site.subscribe("sensors/#", qos=1)
# The broker will send unacknowledged messages again.
on_site.on_disconnect = lambda error: waiting.clear()
on_site.on_error = lambda error: print("on site:", error)
far_away.on_error = lambda error: print("far away:", error)

while True:
    on_site.poll(50)
    far_away.poll(50)
    forward()
