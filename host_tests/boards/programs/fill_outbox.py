# main.py of a virtual board: fills the outbox of the firmware with readings, says how many it stored, and waits.
#
# backlog.json: {"count": readings, "slots": the setting `outbox`, "chunk": bytes of a file, "first": the first slot,
# "qos2": messages at QoS 2 that a broker has sent}
import json
import sys

sys.path[:0] = ["/lib", "/fill"]

from umqtt_robust.flash import FlashStore  # noqa: E402

with open("/backlog.json") as file:
    wanted = json.load(file)
store = FlashStore("/state/mqtt", wanted["slots"], wanted["chunk"])
store.restore()
stored = 0
head = '{"v":1,"id":"b1","boot":"1-00112233445566ff","seq":%d,"ts":null,"up":%d,"m":{"temp_c":21.375,"rssi":-61}}'
try:
    for n in range(wanted["count"]):
        payload = head % (n, 1000 * n)
        store.put(wanted["first"] + n, n + 1, 2, b"fleet/b1/telemetry", payload.encode(), 0)
        stored += 1
    for n in range(wanted["qos2"]):
        store.inbound.put(n + 1, 4, b"down", b"command %d" % n)
    print("stored", stored, "readings")
except Exception:  # noqa: BLE001 - the flash is full: the test counts what it holds
    print("stored", stored, "of the readings")
while True:
    __import__("time").sleep(10)
