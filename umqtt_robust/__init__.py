"""An MQTT 3.1.1 client for MicroPython and CPython that never loses a message the program handed to it.

from umqtt_robust import Client

client = Client("pump-7", "mqtt://broker.example", clean_session=False)
client.publish("fleet/pump-7/telemetry", b"21.4", qos=1)
while True:
    client.poll(1000)
"""

from ._platform import collect
from .base_errors import MQTTError
from .client import Client, Will

__all__ = ["Client", "MQTTError", "Will"]

# Collect the import's garbage before lasting objects are allocated behind it: that would fragment the heap.
collect()
