"""Home Assistant gets each metric once, again when it changes, and all are removed when discovery is turned off."""

import json
import os

import _app_fakes as fakes
from app.discovery import Discovery, config_topic, describe
from umqtt_testkit.portable import Rng, equal, new_path

_METRICS = {"cellar_temp_c": 21.4, "rssi": -61, "mem_free": 104320}
_ID = "pump-7"


class _Telemetry:
    interval_ms = 60_000

    def __init__(self):
        self.metrics = dict(_METRICS)


class _Board:
    def __init__(self, device_id=_ID):
        self.folder = ""
        self.version = "0.1.0"
        self.settings = {"board": "RPI_PICO_W"}
        self.identity = fakes.identity(device_id)
        self.client = fakes.Client()
        self.telemetry = _Telemetry()
        self.log = fakes.Log()


class _World:
    def __enter__(self):
        self.path = new_path("discovery")
        self.board = _Board()
        return self

    def __exit__(self, *_):
        pass

    def kept(self):
        try:
            os.stat(self.path)
        except OSError:
            return False
        return True

    def boot(self, wanted=True):
        """Return the messages [(topic, payload)] of a boot, until there is nothing more to do."""
        self.part = Discovery(self.board, wanted, self.path)
        return self.run()

    def run(self):
        client = self.board.client
        before = len(client.published)
        while self.part.step() == 0:
            client.acknowledge()
        client.acknowledge()
        for _, _, qos, retain in client.published[before:]:
            equal((qos, retain), (1, True))
        return [(topic, payload) for topic, payload, _, _ in client.published[before:]]


def _topics(messages):
    return [topic.decode().split("/")[3] for topic, _ in messages]


def test_a_sensor_has_what_the_documentation_asks_for():
    config = json.loads(describe(_Board(), "cellar_temp_c"))
    equal(config, {
        "name": "cellar temp c",
        "unique_id": "pump-7_cellar_temp_c",
        "state_topic": "fleet/pump-7/telemetry",
        "value_template": "{{ value_json.m['cellar_temp_c'] | default('') }}",
        "expire_after": 240,
        "availability_topic": "fleet/pump-7/status",
        "availability_template":
            "{{ 'online' if value_json.online or value_json.reason == 'sleeping' else 'offline' }}",
        "state_class": "measurement",
        "unit_of_measurement": "°C",
        "device_class": "temperature",
        "device": {"identifiers": ["pump-7"], "name": "pump-7", "sw_version": "0.1.0", "model": "RPI_PICO_W"},
        "origin": {"name": "umqtt_robust", "sw_version": "0.1.0"},
    })  # fmt: skip


def test_the_end_of_a_name_tells_unit_and_class():
    for metric, unit, device_class, category in (
        ("humidity_pct", "%", "humidity", None), ("soil_pct", "%", None, None),
        ("pressure_hpa", "hPa", "atmospheric_pressure", None), ("supply_v", "V", "voltage", None),
        ("loop_ms", "ms", "duration", "diagnostic"), ("uptime_s", "s", "duration", "diagnostic"),
        ("rssi", "dBm", "signal_strength", "diagnostic"), ("mem_free", "B", "data_size", "diagnostic"),
        ("clock_drift_ppm", "ppm", None, "diagnostic"), ("door_open", None, None, None),
        ("co2_ppm", "ppm", "carbon_dioxide", None), ("light_lx", "lx", "illuminance", None),
        ("a0_v", "V", "voltage", None), ("current_a", "A", "current", None), ("power_w", "W", "power", None),
        ("weight_kg", "kg", "weight", None), ("distance_mm", "mm", "distance", None), ("alt_m", "m", "distance", None),
        ("pm25_ugm3", "µg/m³", "pm25", None), ("attic_pm10_ugm3", "µg/m³", "pm10", None),
        ("moisture_pct", "%", "moisture", None), ("water_m3", "m³", "water", None),
        ("vibration_ms2", "m/s²", None, None),
    ):  # fmt: skip
        config = json.loads(describe(_Board(), metric))
        found = [config.get(key) for key in ("unit_of_measurement", "device_class", "entity_category")]
        equal(found, [unit, device_class, category], metric)
        equal(config["state_class"], "total_increasing" if metric == "water_m3" else "measurement", metric)


def test_ids_hold_only_what_home_assistant_allows_and_differ():
    # Planted: other characters are replaced, and pump.7, pump_7 and pump:7 share one id.
    equal(config_topic("a_b-c", "temp_0a1b_c"), b"homeassistant/sensor/a_b-c/temp_0a1b_c/config")
    equal(config_topic("a.b:c", "temp_0a1b_c"), b"homeassistant/sensor/a_b_c-98dc8038/temp_0a1b_c/config")
    boards = ["pump.7", "pump_7", "pump:7"]
    equal(len({json.loads(describe(_Board(name), "temp_c"))["unique_id"] for name in boards}), 3)
    equal(len({config_topic(name, "temp_c") for name in boards}), 3)


def test_a_metric_that_occurs_once_is_described():
    # Planted: only the metrics of the last reading are.
    with _World() as world:
        world.board.client.connected = False
        world.board.telemetry.metrics = {"supply_v": 4.9}
        world.boot()
        world.board.client.connected = True
        world.board.telemetry.metrics = {"rssi": -60}
        equal(_topics(world.run()), ["rssi", "supply_v"])


def test_a_new_interval_is_described():
    with _World() as world:
        world.boot()
        world.board.telemetry.interval_ms = 1000
        world.part.check_again()
        messages = world.run()
        equal(_topics(messages), sorted(_METRICS))
        equal(json.loads(messages[0][1])["expire_after"], 63)


def test_each_metric_is_described_once_over_boots():
    with _World() as world:
        messages = world.boot()
        equal(_topics(messages), sorted(_METRICS))
        equal(world.boot(), [])
        world.board.telemetry.metrics = dict(_METRICS, door_open=1)
        equal(_topics(world.run()), ["door_open"])
        # A reading without the metrics of a silent sensor removes nothing.
        world.board.telemetry.metrics = {"rssi": -60}
        equal(world.run(), [])


def test_what_changed_is_sent_again():
    with _World() as world:
        world.boot()
        world.board.version = "0.2.0"
        equal(_topics(world.boot()), sorted(_METRICS))
        equal(world.boot(), [])


def test_a_broker_that_forgot_this_board_is_told_again():
    with _World() as world:
        world.boot()
        world.part.connected(True)
        equal(world.run(), [])
        world.part.connected(False)
        equal(_topics(world.run()), sorted(_METRICS))


def test_switched_off_everything_is_taken_back_and_nothing_kept():
    with _World() as world:
        world.boot()
        messages = world.boot(False)
        equal(_topics(messages), sorted(_METRICS))
        equal([payload for _, payload in messages], [b""] * 3)
        equal((world.kept(), world.boot(False)), (False, []))


def test_readings_go_first_and_what_was_dropped_goes_again():
    with _World() as world:
        client = world.board.client
        client.pending = client.slots // 2 + 1
        equal(world.boot(), [])
        client.acknowledge()
        world.run()
        world.part.dropped(config_topic(_ID, "rssi"))
        world.part.dropped(b"fleet/pump-7/log")
        equal(_topics(world.run()), ["rssi"])


def test_a_cut_or_a_full_outbox_at_any_moment_ends_with_everything_described():
    for seed in range(20):
        rng = Rng(seed, quiet=True)
        with _World() as world:
            client = world.board.client
            part = Discovery(world.board, True, world.path)
            for _ in range(20):
                client.room = 100 if rng.chance(60) else client.pending
                client.connected = rng.chance(80)
                part.step()
                if rng.chance(20):
                    part = Discovery(world.board, True, world.path)
            client.room, client.connected = 1000, True
            world.boot()
            held = {topic: payload for topic, payload, _, _ in client.published}
            equal(len(held), 3, "seed %d" % seed)
            for metric in _METRICS:
                equal(held[config_topic(_ID, metric)], describe(world.board, metric))
