"""Stand-ins for the objects that parts of app receive: a client with a small outbox, an identity, a clock."""

from app.clock import Clock as AppClock
from app.identity import Identity
from umqtt_testkit.portable import Clock

from umqtt_robust.errors import OutboxFull


class Client:
    """A client that accepts publishes until it holds `room` of them; acknowledge() empties it."""

    def __init__(self, room=100):
        self.room = self.slots = room
        self.outbox = self.store = self
        self.published = []
        self.pending = 0
        self.connected = True

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None):
        if not qos:
            if self.connected:
                self.published.append((topic, payload, qos, retain))
            return 0 if self.connected else None
        if self.pending == self.room:
            raise OutboxFull(self.room)
        self.pending += 1
        self.published.append((topic, payload, qos, retain))
        self.expires_in = expires_in
        return len(self.published)

    def is_pending(self, packet_id):
        return packet_id > len(self.published) - self.pending

    def acknowledge(self):
        self.pending = 0

    def payloads(self, topic):
        return [payload for one, payload, _, _ in self.published if one == topic]


def identity(device_id="pump-7"):
    return Identity(device_id, 17, b"\x9f\x3a\x2c\x5d\x8e\x1b\x4a\x70")


def clock(system_ms=None):
    """Return a Clock of ticks and an app.clock.Clock on it."""
    ticks = Clock()
    return ticks, AppClock(ticks.ticks_ms, ticks.ticks_diff, system_ms)


class Log:
    """A log whose report() may be told to refuse."""

    refused_by_broker = False

    def __init__(self):
        self.records = []
        self.full = False

    def failed(self, error):
        self.report("warning", str(error))

    def step(self, last=False):
        pass

    def report(self, level, text, fields=None, always=False):
        if self.full:
            return False
        self.records.append((level, text, fields))
        return True
