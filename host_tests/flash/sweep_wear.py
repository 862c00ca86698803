"""Measures the flash wear of the store inside MicroPython; prints one line of JSON for each case.

With the argument `quick`, a partition's life is simulated for a tenth of the time, and the rate with a hundred
messages.

A case is (geometry, payload, occupied): `payload` bytes under a topic name of 24 bytes, in 64 slots of which
`occupied` are in use all the time; 1000 messages are stored and acknowledged in order.
"""

import gc
import json
import sys
import time

from sweep_device import Device, Ledger
from umqtt_testkit.flash import ROOT, PowerCutFlash

from umqtt_robust.flash import FlashStore
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MemoryStore, Outbox

SLOTS = 64
MESSAGES = 1000
BLOCKS = 64
CHUNKS = {"esp32": 120, "rp2": 504}
READING = 160  # bytes of a reading of the firmware with three sensors
STARTS = 5
PARTITIONS = {"esp32": 512, "rp2": 212}  # blocks of the boards' file systems
TOPIC = b"fleet/pump-007/telemetry"


def cycle(outbox, packet_id, payload, count):
    """Store and acknowledge `count` messages, the oldest first; return the last packet id."""
    for _ in range(count):
        packet_id += 1
        outbox.put(packet_id, 2, TOPIC, payload)
        outbox.remove(packet_ids(outbox)[0])
    return packet_id


def wear(geometry, size, occupied):
    """Measure one case, after enough messages that all folders exist and their logs are being rewritten."""
    payload = b"p" * size
    with PowerCutFlash(geometry, BLOCKS) as flash:
        outbox = Outbox(FlashStore(ROOT + "/mqtt", SLOTS, CHUNKS[geometry]), 8)
        packet_id = 0
        for packet_id in range(1, occupied):
            outbox.put(packet_id, 2, TOPIC, payload)
        packet_id = cycle(outbox, packet_id, payload, 200)
        report(flash, "wear", geometry, size, occupied, lambda: cycle(outbox, packet_id, payload, MESSAGES))


def late(geometry):
    """Measure late storing over a link that stays up."""
    with PowerCutFlash(geometry, BLOCKS) as flash:
        device = Device(ROOT, Ledger(), FlashStore, CHUNKS[geometry])
        device.client.part("late")
        device.connect()

        def run():
            for number in range(MESSAGES // 8):
                for part in range(8):
                    device.publish(b"%04d %d" % (number, part) + b"p" * 58, 1)
                device.settle()

        report(flash, "late", geometry, 64, 8, run)


def report(flash, case, geometry, size, occupied, run):
    flash.flash.clear_counters()
    start = time.ticks_us()
    run()
    us = time.ticks_diff(time.ticks_us(), start)
    device = flash.flash
    print(
        json.dumps(
            {
                "case": case, "geometry": geometry, "payload": size, "occupied": occupied,
                "erases": sum(device.erases), "most_erased": max(device.erases), "programs": device.programs,
                "bytes": device.programmed_bytes, "us_per_message": us // MESSAGES,
            }
        )
    )  # fmt: skip


def restore(geometry):
    """Measure how long a start takes with all slots full, and the store's heap compared with a MemoryStore's.

    The shortest of several equal runs counts, because the machine may be held up during one of them.
    """
    with PowerCutFlash(geometry, BLOCKS) as flash:
        store = FlashStore(ROOT + "/mqtt", SLOTS, CHUNKS[geometry])
        outbox = Outbox(store, 8)
        for packet_id in range(1, SLOTS + 1):
            outbox.put(packet_id, 2, TOPIC, b"p" * 64)
        ms = 1 << 29
        for _ in range(STARTS):
            flash.unmount()
            flash.mount()
            store = outbox = None
            gc.collect()
            before = gc.mem_alloc()
            start = time.ticks_ms()
            store = FlashStore(ROOT + "/mqtt", SLOTS, CHUNKS[geometry])
            found = list(store.restore())
            ms = min(ms, time.ticks_diff(time.ticks_ms(), start))
            count = len(found)
            found = None
            gc.collect()
            heap = gc.mem_alloc() - before
        print(json.dumps({"case": "restore", "geometry": geometry, "messages": count, "ms": ms, "heap": heap}))


def life(geometry, messages):
    """Measure how evenly littlefs spreads the wear over a board's partition, one message at a time."""
    with PowerCutFlash(geometry, PARTITIONS[geometry]) as flash:
        outbox = Outbox(FlashStore(ROOT + "/mqtt", SLOTS, CHUNKS[geometry]), 8)
        flash.flash.clear_counters()
        packet_id = 0
        for _ in range(messages // MESSAGES):
            packet_id = cycle(outbox, packet_id, b"p" * 64, MESSAGES) % 60000
        erases = flash.flash.erases
        entry = {"case": "life", "geometry": geometry, "messages": messages, "blocks": len(erases)}
        entry["erases"] = sum(erases)
        entry["most_erased"] = max(erases)
        print(json.dumps(entry))


def rate(messages):
    """Measure the messages per second that the outbox stores and acknowledges, compared with the memory store."""
    for name in ("memory", "esp32", "rp2"):
        with PowerCutFlash("rp2" if name == "rp2" else "esp32", BLOCKS):
            store = FlashStore(ROOT + "/mqtt", SLOTS, CHUNKS[name]) if name != "memory" else MemoryStore(SLOTS)
            outbox = Outbox(store, 8)
            start = time.ticks_us()
            cycle(outbox, 0, b"p" * 64, messages)
            us = time.ticks_diff(time.ticks_us(), start)
            print(json.dumps({"case": "rate", "store": name, "per_second": messages * 1000000 // us}))


def main():
    is_quick = "quick" in sys.argv
    life_messages = (3 if is_quick else 30) * MESSAGES
    for geometry in ("esp32", "rp2"):
        for size, occupied in ((64, 1), (64, 8), (64, 56), (READING, 1), (300, 8)):
            wear(geometry, size, occupied)
        late(geometry)
        restore(geometry)
        life(geometry, life_messages)
    rate(100 if is_quick else MESSAGES)


if __name__ == "__main__":
    main()
