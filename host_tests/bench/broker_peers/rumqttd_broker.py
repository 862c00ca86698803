"""The broker rumqttd for the bench: python rumqttd_broker.py PORT, with a Python that has the package iotcore."""

import logging
import sys

from iotcore import IotCoreBroker

# Otherwise it logs every packet.
logging.disable(logging.CRITICAL)
IotCoreBroker(
    listen="127.0.0.1",
    port=int(sys.argv[1]),
    max_payload_size=16 * 1024 * 1024,
    max_inflight_count=1000,
).run_forever()
