"""Deep sleep: a board on a battery wakes, measures, delivers what it can, and sleeps.

For an ESP32. Copy it to the board as main.py. A reading that finds no network waits in flash until a later wake.
"""

import json
import time

import machine
import network

from umqtt_robust import Client
from umqtt_robust.flash import FlashStore

SSID, PASSWORD = "workshop", "correct horse"
BROKER = "mqtt://192.168.1.2:1883"
DEVICE = "meter-3"
SLEEP_MS = 600_000
LONGEST_AWAKE_MS = 20_000


def wake_count():
    """Return how often the board has woken since power-on: RTC memory lasts as long as the power."""
    memory = machine.RTC().memory()
    count = int(memory) + 1 if memory else 1
    machine.RTC().memory(str(count).encode())
    return count


def join_wifi(deadline):
    station = network.WLAN(network.STA_IF)
    station.active(True)
    station.connect(SSID, PASSWORD)
    while not station.isconnected() and time.ticks_diff(deadline, time.ticks_ms()) > 0:
        time.sleep_ms(50)


try:
    deadline = time.ticks_add(time.ticks_ms(), LONGEST_AWAKE_MS)
    client = Client(DEVICE, BROKER, clean_session=False, store=FlashStore("/mqtt", slots=256))
    reading = {"wake": wake_count(), "supply_v": 3.3}  # measure here
    client.publish("meters/" + DEVICE, json.dumps(reading), qos=1)  # in flash from here on
    join_wifi(deadline)
    client.disconnect(quiesce_ms=max(0, time.ticks_diff(deadline, time.ticks_ms())))
    while not client.closed:
        client.poll(1000)
finally:  # a board that met an error must not stay awake
    machine.deepsleep(SLEEP_MS)
