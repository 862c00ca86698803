"""Describes this board's metrics to Home Assistant (MQTT discovery), or withdraws the descriptions.

    homeassistant/sensor/{device_id}/{metric}/config    retained; an empty message withdraws it

There is one message for each metric in the readings so far, also for one that occurred once. A checksum in flash
records what the broker holds: a description is sent again if it changes or the broker no longer knows this board. The
suffix of a metric's name gives its unit. Metrics that no longer occur in readings stay described until the setting is
switched off.
"""

import json
import os
from binascii import crc32

from umqtt_robust.errors import OutboxFull

# (suffix of the name, unit, device class), in Home Assistant's terms.
_KINDS = (
    ("humidity_pct", "%", "humidity"),
    ("moisture_pct", "%", "moisture"),
    ("_pct", "%", None),
    ("_c", "°C", "temperature"),
    ("_hpa", "hPa", "atmospheric_pressure"),
    ("_v", "V", "voltage"),
    ("_a", "A", "current"),
    ("_w", "W", "power"),
    ("_kwh", "kWh", "energy"),
    ("_lx", "lx", "illuminance"),
    ("_kg", "kg", "weight"),
    ("_mm", "mm", "distance"),
    ("_m", "m", "distance"),
    ("_ms2", "m/s²", None),
    ("_deg", "°", None),
    ("_ohm", "Ω", None),
    ("pm1_ugm3", "µg/m³", "pm1"),
    ("pm25_ugm3", "µg/m³", "pm25"),
    ("pm10_ugm3", "µg/m³", "pm10"),
    ("water_m3", "m³", "water"),
    ("gas_m3", "m³", "gas"),
    ("_ms", "ms", "duration"),
    ("_s", "s", "duration"),
    ("co2_ppm", "ppm", "carbon_dioxide"),
    ("_ppm", "ppm", None),
    ("rssi", "dBm", "signal_strength"),
    ("mem_free", "B", "data_size"),
)
# What only grows, but for a meter that is replaced.
_TOTALS = ("pulses", "_kwh", "water_m3", "gas_m3")
# Metrics of the board itself, not of what it measures.
_DIAGNOSTIC = ("rssi", "mem_free", "uptime_s", "loop_ms", "clock_drift_ppm", "chip_c", "sensor_failures")
_AVAILABLE = "{{ 'online' if value_json.online or value_json.reason == 'sleeping' else 'offline' }}"


class Discovery:
    """The descriptions of a board's metrics. board: app.board.Board; wanted: False withdraws what was described."""

    def __init__(self, board, wanted, path=None):
        self._board = board
        self._wanted = wanted
        self._path = path or board.folder + "/state/discovery"
        self._sent = _read(self._path)
        self._checked = set()
        self._seen = set()

    def step(self):
        """Send at most one message. Returns 0 while there may be more to do, else None."""
        client = self._board.client
        self._seen.update(self._board.telemetry.metrics)
        # Readings have priority in the outbox.
        if not client.connected or client.pending > client.outbox.store.slots // 2:
            return None
        if not self._wanted:
            return self._take_back(client)
        for metric in sorted(self._seen):
            if metric in self._checked:
                continue
            payload = describe(self._board, metric)
            checksum = crc32(payload) & 0xFFFFFFFF
            if self._sent.get(metric) != checksum:
                if self._publish(client, metric, payload):
                    self._sent[metric] = checksum
                    self._write()
                return 0
            self._checked.add(metric)
        return None

    def check_again(self):
        """Describe again what the settings have changed."""
        self._checked = set()

    def connected(self, session_present):
        """Send all descriptions again if the broker has no session of this board: it may have lost them as well."""
        if not session_present and self._wanted:
            self._sent = dict.fromkeys(self._sent, 0)
            self._checked = set()

    def dropped(self, topic):
        """Handle a message that the outbox dropped: if it was a description, it is sent again."""
        for metric in self._sent:
            if topic == config_topic(self._board.identity.device_id, metric):
                self._sent[metric] = 0
                self._checked = set()

    def _take_back(self, client):
        for metric in sorted(self._sent):
            if self._publish(client, metric, b""):
                del self._sent[metric]
                self._write()
            return 0
        return None

    def _publish(self, client, metric, payload):
        try:
            client.publish(config_topic(self._board.identity.device_id, metric), payload, qos=1, retain=True)
        except OutboxFull:
            return False
        return True

    def _write(self):
        try:
            if self._sent:
                with open(self._path, "w") as file:
                    file.write(json.dumps(self._sent))
            else:
                os.remove(self._path)
        except OSError as error:
            # The description is then sent once more at the next boot, and can no longer be withdrawn after it.
            self._board.log.report("warning", "discovery: not noted in flash: %r" % error)


def config_topic(device_id, metric):
    return ("homeassistant/sensor/%s/%s/config" % (_id(device_id), _id(metric))).encode()


def describe(board, metric):
    """Return the JSON, as bytes, from which Home Assistant creates the sensor of a metric."""
    identity = board.identity
    device_id = identity.device_id
    config = {
        "name": metric.replace("_", " "),
        "unique_id": _id(device_id) + "_" + _id(metric),
        "state_topic": identity.topic("telemetry").decode(),
        # A reading without this metric changes nothing: Home Assistant ignores an empty state of a number.
        "value_template": "{{ value_json.m['%s'] | default('') }}" % metric,
        # A board that is silent for longer has no values, whatever its last status says.
        "expire_after": 60 + 3 * board.telemetry.interval_ms // 1000,
        "availability_topic": identity.topic("status").decode(),
        # A sleeping board counts as available.
        "availability_template": _AVAILABLE,
        "state_class": "total_increasing" if metric.endswith(_TOTALS) else "measurement",
        "device": {"identifiers": [device_id], "name": device_id, "sw_version": board.version},
        "origin": {"name": "umqtt_robust", "sw_version": board.version},
    }
    model = board.settings.get("board")
    if model:
        config["device"]["model"] = model
    for end, unit, device_class in _KINDS:
        if metric.endswith(end):
            config["unit_of_measurement"] = unit
            if device_class:
                config["device_class"] = device_class
            break
    if metric in _DIAGNOSTIC:
        config["entity_category"] = "diagnostic"
    # Sorted keys: a dict has no fixed order on a board, and the checksum must not change by itself.
    return _ordered(config).encode()


def _ordered(config):
    return "{%s}" % ", ".join(["%s: %s" % (json.dumps(key), _value(config[key])) for key in sorted(config)])


def _value(value):
    return _ordered(value) if isinstance(value, dict) else json.dumps(value)


def _id(text):
    # Home Assistant allows letters, digits, - and _ in a topic's node and object ids. Other texts get a checksum, since
    # pump.7 and pump:7 are two boards.
    allowed = "".join([c if c.isalpha() or c.isdigit() or c in "-_" else "_" for c in text])
    return allowed if allowed == text else "%s-%08x" % (allowed, crc32(text.encode()) & 0xFFFFFFFF)


def _read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}
