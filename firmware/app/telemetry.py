"""Takes readings at an interval and publishes each as a telemetry record.

    {"v":1,"id":"pump-7","boot":"17-9f3a2c5d8e1b4a70","seq":4211,"ts":1795000000123,"up":912345,"m":{"mem_free":104320}}

With "encoding": "cbor" in the settings the same fields are a CBOR map.

ts is Unix milliseconds, null until the clock is known; up is milliseconds since boot; seq counts from 0
within a boot. A reading that the outbox refuses keeps its seq and is noted as a gap (gaps.py), like readings that are
dropped to make room.
"""

import json

from app.modules import once
from umqtt_robust.errors import OutboxFull, StoreError

# Functions called with the record's bytes right after publish() accepted it, for instance by a test or a data
# logger that must see all that this board promised to deliver. Empty unless a program appends to it.
on_published = []

# A larger record is sent without some of its metrics: it has to fit into the buffers on its way, and into flash.
_MOST_BYTES = 900
# With so many messages in the outbox, half of its default, further readings wait in files; the rest is for status, log
# and replies.
_MOST_IN_OUTBOX = 32


class Telemetry:
    """A publisher of readings. client: umqtt_robust.Client; sensors: app.sensors.Sensors or None; report(level,
    text): of a log; gaps: app.gaps.Gaps; qos: 1 or 2; expires_s: seconds after which an unsent reading is dropped,
    0: never; encoding: "json" or "cbor", of the records. files: where readings wait for the outbox, as overflow.find()
    returns it; None: the outbox alone keeps readings.

    Counters: published, dropped (for lack of room). first_id: packet id of the first reading that the outbox accepted
    in this boot: its acknowledgement confirms the boot.
    """

    def __init__(self, client, identity, clock, sensors, interval_ms, report, gaps=None, qos=1, expires_s=0,
                 encoding="json", files=None):  # fmt: skip
        self.client = client
        self.topic = identity.topic("telemetry")
        self._boot = identity.boot
        self._head = '{"v":1,"id":%s,"boot":"%s","seq":' % (json.dumps(identity.device_id), identity.boot)
        self._fields = self._cbor = None
        if encoding == "cbor":
            from app.cbor import encode

            self._cbor = encode
            self._fields = {"v": 1, "id": identity.device_id, "boot": identity.boot}
        self._clock = clock
        self._sensors = sensors
        self._report = report
        self.gaps = gaps
        self._next_ms = clock.uptime_ms()
        self._started_ms = None
        self._too_large = False
        self.interval_ms = interval_ms
        self.qos = qos
        self.expires_s = expires_s
        self.paused = False
        self.files = files
        self.metrics = {}  # of the last reading
        self.seq = 0
        self.first_id = 0
        self.published = 0
        self.dropped = 0

    def step(self):
        """Take a reading if it is due. Returns the milliseconds until the next one, or None while paused."""
        if self.waits() and self.client.pending <= _MOST_IN_OUTBOX // 2:
            once("overflow", "hand_on", self)
        if self.paused:
            return None
        now = self._clock.uptime_ms()
        wait = self._lead(now)
        if wait > 0:
            return wait
        if now >= self._next_ms:
            self._take(now)
            # The schedule is kept, so that the average interval is right. If the loop was held up for longer
            # than an interval, the missed readings are skipped: taken at once, they would all be the same.
            self._next_ms += self.interval_ms
            if self._next_ms <= now:
                self._next_ms = now + self.interval_ms
            wait = self._lead(now)
        return wait if wait > 0 else self._next_ms - now

    def resume(self):
        self.paused = False
        self._next_ms = self._clock.uptime_ms()

    def _lead(self, now):
        # Starts the sensors that need time to measure. Returns the ms to wait, 0 if a reading may be due.
        lead_ms = self._sensors.lead_ms if self._sensors else 0
        if not lead_ms:
            return 0
        if self._started_ms is None:
            left = self._next_ms - lead_ms - now
            if left > 0:
                return left
            self._sensors.start()
            # Taken after start(), which may itself take long: the lead time counts from here.
            self._started_ms = self._clock.uptime_ms()
        return max(self._next_ms, self._started_ms + lead_ms) - now

    def _take(self, now):
        self.metrics = self._sensors.read() if self._sensors else {}
        record = self.encode(now, self.metrics)
        self._started_ms = None
        seq = self.seq
        self.seq += 1
        try:
            if self.waits() or self.files and self.client.pending >= _MOST_IN_OUTBOX:
                once("overflow", "keep", self, record)
            else:
                self.publish(record)
        except (OutboxFull, StoreError, MemoryError) as error:
            self.dropped += 1
            if self.gaps:
                self.gaps.add(self._boot, seq)
            if isinstance(error, OutboxFull):
                return
            raise  # StoreError: start.py continues with the outbox in RAM
        self.published += 1
        for hook in on_published:
            hook(record)

    def waits(self):
        """Return True if readings wait for the outbox."""
        return self.files and self.files[1] != self.files[2]

    def publish(self, record, topic=None):
        """Put the record of a reading into the outbox. Raises OutboxFull and StoreError."""
        expires_in = self.expires_s * 1000 or None
        packet_id = self.client.publish(topic or self.topic, record, qos=self.qos, expires_in=expires_in)
        if not self.first_id:
            self.first_id = packet_id

    def encode(self, now, metrics):
        """Return the record (bytes) of a reading that is taken now."""
        ts = self._clock.unix_ms()
        record = self._pack(now, ts, metrics)
        if len(record) <= _MOST_BYTES:
            return record
        names = sorted(metrics)
        while len(record) > _MOST_BYTES:
            del metrics[names.pop()]
            record = self._pack(now, ts, metrics)
        if not self._too_large:
            text = "a reading has at most %d bytes: the metrics after %s are left out" % (_MOST_BYTES, names[-1:])
            self._too_large = self._report("warning", text)
        return record

    def _pack(self, now, ts, metrics):
        if self._cbor:
            self._fields.update((("seq", self.seq), ("ts", ts), ("up", now), ("m", metrics)))
            return self._cbor(self._fields)
        head = '%s%d,"ts":%s,"up":%d,"m":' % (self._head, self.seq, "null" if ts is None else ts, now)
        return (head + json.dumps(metrics, separators=(",", ":")) + "}").encode()
