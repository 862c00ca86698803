"""Sensor to table: each reading has an identity, so it is in the tables exactly once.

On a computer, with the broker, the collector and the pipeline of this project, each in its own terminal:

    umqtt broker -p 1883
    umqtt collect --broker mqtt://127.0.0.1:1883 --spool spool
    python sensor_to_table.py
    umqtt ingest --spool spool --tables tables --checkpoint checkpoint --once
    umqtt report --tables tables --out report.html

On a board, join a Wi-Fi network (deep_sleep.py shows how) and set the clock (ntptime) before starting this program.
"""

import binascii
import json
import os
import time

from umqtt_robust import Client
from umqtt_robust.flash import FlashStore

BROKER = "mqtt://127.0.0.1:1883"
DEVICE = "well-1"
READINGS = 10
INTERVAL_S = 1
# Some ports of MicroPython count seconds from 2000 instead of 1970.
EPOCH_S = 946684800 if time.gmtime(0)[0] == 2000 else 0


def read_sensor():
    """Return metrics, name to number. Replace this by your sensor."""
    return {"level_m": 12.5}


def new_boot():
    """Return a name that is unique to this start of the program: a counter in flash, and 64 random bits."""
    name = DEVICE + ".boot"
    try:
        with open(name) as file:
            number = int(file.read()) + 1
    except (OSError, ValueError):  # the first start, or a power cut has emptied the file
        number = 1
    with open(name, "w") as file:
        file.write(str(number))
    return "%d-%s" % (number, binascii.hexlify(os.urandom(8)).decode())


def now_ms():
    """Return Unix milliseconds, or None while the clock is not set: the table then uses the time of arrival."""
    return (int(time.time()) + EPOCH_S) * 1000 if time.gmtime()[0] > 2025 else None


client = Client(DEVICE, BROKER, clean_session=False, store=FlashStore(DEVICE, slots=64))
boot = new_boot()
for seq in range(READINGS):
    record = {"v": 1, "id": DEVICE, "boot": boot, "seq": seq, "ts": now_ms(), "up": None, "m": read_sensor()}
    client.publish("fleet/" + DEVICE + "/telemetry", json.dumps(record), qos=1)
    next_s = time.time() + INTERVAL_S
    while time.time() < next_s:
        client.poll(100)
while client.pending:
    client.poll(1000)
print("delivered", READINGS)
