"""Takes readings at an interval and publishes each as a telemetry record at QoS 1.

    {"v":1,"id":"pump-7","boot":"17-9f3a2c5d8e1b4a70","seq":4211,"ts":1795000000123,"up":912345,"m":{"mem_free":104320}}

ts is Unix milliseconds, null until the clock is known; up is milliseconds since boot; seq counts from 0
within a boot. Numbers that are not finite become null. A reading that the outbox refuses keeps its seq, and
its gap is announced on the log topic once there is room.
"""

import json
import math

from umqtt_robust.errors import OutboxFull, StoreError

# Called with the record's bytes right after publish() accepted it: the hook for whoever must witness what
# this board promised to deliver, for instance a test or a data logger. Empty unless somebody appends to it.
on_published = []

# More gaps than this are merged, which announces too much rather than forgetting some.
_MAX_GAPS = 8


class Telemetry:
    """client: umqtt_robust.Client; sensors: objects with read(); report(level, text, fields): a log."""

    def __init__(self, client, identity, clock, sensors, interval_ms, report):
        self._client = client
        self._topic = identity.topic("telemetry")
        self._head = '{"v":1,"id":%s,"boot":"%s","seq":' % (json.dumps(identity.device_id), identity.boot)
        self._clock = clock
        self._sensors = sensors
        self._report = report
        self._next_ms = clock.uptime_ms()
        self._failed_sensors = set()
        self._gaps = []
        self.interval_ms = interval_ms
        self.paused = False
        self.seq = 0
        # Packet id of the first reading of this boot that the outbox took: its acknowledgement confirms the boot.
        self.first_id = 0
        self.published = 0
        self.dropped = 0

    def step(self):
        """Take a reading if it is due. Returns the milliseconds until the next one, or None while paused."""
        if self._gaps:
            self._announce_gaps()
        if self.paused:
            return None
        now = self._clock.uptime_ms()
        if now >= self._next_ms:
            self._take(now)
            # The schedule is kept, so that an interval is an interval on average. Where the loop was held up
            # for longer than that, the readings missed do not come in a bunch: they would all say the same.
            self._next_ms += self.interval_ms
            if self._next_ms <= now:
                self._next_ms = now + self.interval_ms
        return self._next_ms - now

    def resume(self):
        self.paused = False
        self._next_ms = self._clock.uptime_ms()

    def _take(self, now):
        record = self._encode(now, self._read_sensors())
        seq = self.seq
        self.seq += 1
        try:
            packet_id = self._client.publish(self._topic, record, qos=1)
        except (OutboxFull, StoreError):
            self.dropped += 1
            add_to_gaps(self._gaps, seq)
            return
        self.published += 1
        if not self.first_id:
            self.first_id = packet_id
        for hook in on_published:
            hook(record)

    def _read_sensors(self):
        metrics = {}
        for position, sensor in enumerate(self._sensors):
            try:
                metrics.update(sensor.read())
            except (OSError, ValueError) as error:
                # Once, not at every reading: a broken wire must not fill the outbox.
                if position not in self._failed_sensors:
                    text = "sensor %s: %r" % (type(sensor).__name__, error)
                    if self._report("warning", text, None):
                        self._failed_sensors.add(position)
            else:
                self._failed_sensors.discard(position)
        return metrics

    def _encode(self, now, metrics):
        ts = self._clock.unix_ms()
        return ("%s%d,\"ts\":%s,\"up\":%d,\"m\":%s}" % (
            self._head, self.seq, "null" if ts is None else ts, now, encode_metrics(metrics))).encode()

    def _announce_gaps(self):
        text = "%d readings dropped: the outbox had no room" % self.dropped
        if self._report("warning", text, {"dropped_seq": self._gaps}):
            self._gaps = []


def encode_metrics(metrics):
    """JSON text of a flat dict of numbers. Raises TypeError, naming the metric, for what is no number."""
    clean = {}
    for name, value in metrics.items():
        if value is not None and not isinstance(value, (int, float)):
            raise TypeError("metric %s: %r is not a number" % (name, value))
        # JSON has no NaN and no infinity; json.dumps would write them all the same.
        clean[name] = value if value is None or isinstance(value, int) or math.isfinite(value) else None
    return json.dumps(clean, separators=(",", ":"))


def add_to_gaps(gaps, seq):
    """Note seq in gaps, a list of [first, last] in ascending order."""
    if gaps and gaps[-1][1] == seq - 1:
        gaps[-1][1] = seq
    elif len(gaps) == _MAX_GAPS:
        gaps[-1][1] = seq
    else:
        gaps.append([seq, seq])
