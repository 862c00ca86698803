"""A sensor that fails is reported once and recovers by itself; the other sensors are not affected."""

import sys

import _app_fakes as fakes
from app.sensors import Sensors
from app.sensors.system import LoopTimer, System
from umqtt_testkit.portable import Rng, equal


class _Sensor:
    """A sensor that returns or raises these readings, one after the other."""

    def __init__(self, *readings):
        self._readings = list(readings)

    def read(self):
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading


class _Slow(_Sensor):
    lead_ms = 750
    started = 0

    def start(self):
        self.started += 1


class _Module:
    """The result of importing a sensor's module."""

    def __init__(self, make):
        self.Sensor = make


def _build():
    ticks, clock = fakes.clock()
    log = fakes.Log()
    return ticks, log, Sensors(clock, log.report)


def _configure(sensors, module, make, **entry):
    """Configure a sensor whose module is already loaded."""
    sys.modules["app.sensors." + module] = _Module(make)
    entry["module"] = module
    sensors.configure(entry)


def _texts(log):
    return [(level, text) for level, text, _ in log.records]


def test_a_failing_sensor_is_reported_once_counted_and_reported_back():
    _, log, sensors = _build()
    sensors.add("wire", _Sensor(OSError(5), OSError(5), {"temp_c": 21.5}, {"temp_c": 22}, OSError(5), OSError(5)))
    sensors.add("heap", _Sensor({"mem_free": 1}))
    equal([sensors.read() for _ in range(6)], [
        {"mem_free": 1, "sensor_failures": 1}, {"mem_free": 1, "sensor_failures": 2},
        {"temp_c": 21.5, "mem_free": 1, "sensor_failures": 2}, {"temp_c": 22, "mem_free": 1, "sensor_failures": 2},
        {"mem_free": 1, "sensor_failures": 3}, {"mem_free": 1, "sensor_failures": 4}])  # fmt: skip
    equal(
        _texts(log),
        [
            ("warning", "sensor wire: OSError(5%s)" % ("" if "," not in repr(OSError(5)) else ",")),
            ("info", "sensor wire: answers again"),
            ("warning", "sensor wire: OSError(5%s)" % ("" if "," not in repr(OSError(5)) else ",")),
        ],
    )


def test_numbers_that_are_not_finite_become_null():
    _, _, sensors = _build()
    infinity = float("inf")
    sensors.add("odd", _Sensor({"a": float("nan"), "b": infinity, "c": -infinity, "d": 1.5, "e": True, "f": None}))
    equal(sensors.read(), {"a": None, "b": None, "c": None, "d": 1.5, "e": 1, "f": None})


def test_whatever_a_sensor_raises_or_gives_the_others_go_on():
    class _Mine(Exception):
        pass

    for bad in (
        OSError(5),
        ValueError("x"),
        Exception("CRC error"),
        _Mine(),
        MemoryError(),
        KeyError("a"),
        ZeroDivisionError(),
        None,
        7,
        [1],
        {"mode": "auto"},
        {"list": []},
    ):
        _, log, sensors = _build()
        sensors.add("bad", _Sensor(bad))
        sensors.add("good", _Sensor({"mem_free": 1}))
        equal(sensors.read()["mem_free"], 1, repr(bad))
        equal(len(log.records), 1, repr(bad))


def test_a_report_that_found_no_room_is_made_again():
    _, log, sensors = _build()
    sensors.add("wire", _Sensor(OSError(5)))
    log.full = True
    sensors.read()
    log.full = False
    sensors.read()
    sensors.read()
    equal(len(log.records), 1)


def test_names_are_prefixed_so_that_two_of_a_kind_do_not_meet():
    _, _, sensors = _build()
    made = []

    def make(pin):
        made.append(pin)
        return _Sensor({"temp_c": pin})

    _configure(sensors, "test_dht", make, pin=4, name="cellar")
    _configure(sensors, "test_dht", make, pin=5, name="attic")
    _configure(sensors, "test_dht", make, pin=6)
    equal((sensors.read(), made), ({"cellar_temp_c": 4, "attic_temp_c": 5, "temp_c": 6}, [4, 5, 6]))


def test_a_sensor_that_cannot_be_made_is_tried_again_every_half_minute():
    ticks, log, sensors = _build()
    attempts = []

    def make():
        attempts.append(ticks.ticks_ms())
        if len(attempts) < 4:
            raise OSError(19)
        return _Sensor({"temp_c": 1})

    _configure(sensors, "test_late", make, name="late")
    found = []
    for _ in range(200):
        found.append("late_temp_c" in sensors.read())
        ticks.advance(1000)
    equal(attempts, [0, 30000, 60000, 90000])
    equal(found.index(True), 91)
    equal([level for level, _ in _texts(log)], ["warning", "info"])


def test_the_time_that_a_sensor_needs_is_whole_milliseconds_and_never_less_than_it_says():
    for said, lead_ms in ((750, 750), (750.0, 750), (0.5, 1), (10.2, 11), ("long", 0), (float("inf"), 0)):
        _, log, sensors = _build()
        slow = _Slow({"temp_c": 1})
        slow.lead_ms = said
        _configure(sensors, "test_slow", lambda made=slow: made)
        equal((repr(sensors.lead_ms), len(_texts(log))), (repr(lead_ms), 0 if lead_ms else 1))


def test_a_sensor_that_needs_time_is_read_only_when_it_was_started():
    _, _, sensors = _build()
    slow = _Slow({"temp_c": 1})
    sensors.add("slow", slow)
    equal(sensors.lead_ms, 750)
    equal(sensors.read(), {})
    sensors.start()
    equal([sensors.read(), sensors.read(), slow.started], [{"temp_c": 1}, {}, 1])


def test_a_start_that_fails_is_a_failure_and_nothing_is_read():
    _, log, sensors = _build()
    slow = _Slow({"temp_c": 85})

    def fail():
        raise Exception("no device")

    slow.start = fail
    sensors.add("slow", slow)
    sensors.start()
    equal(sensors.read(), {"sensor_failures": 1})
    equal(len(log.records), 1)


def test_wrong_settings_of_a_sensor_are_reported_by_its_name():
    _, log, sensors = _build()
    _configure(sensors, "test_arguments", lambda pin: None, name="north", pni=4)
    sensors.configure({"module": "no_such_sensor", "pin": 4})
    equal(sensors.read(), {"sensor_failures": 2})
    first, second = [text for _, text in _texts(log)]
    assert first.startswith("sensor north: TypeError"), first
    assert second.startswith("sensor no_such_sensor: ") and "/sensors/no_such_sensor.py" in second, second


def test_a_truth_is_a_number():
    _, _, sensors = _build()
    sensors.add("door", _Sensor({"open": True, "shut": False, "unknown": None}))
    found = sensors.read()
    equal((repr(found["open"]), repr(found["shut"]), found["unknown"]), ("1", "0", None))


def test_no_mixture_of_failures_loses_a_reading_of_those_that_answer():
    for seed in range(20):
        rng = Rng(seed, quiet=True)
        ticks, log, sensors = _build()
        states = [True] * 4

        class _Wire:
            def __init__(self, position):
                self.position = position

            def read(self):
                if not states[self.position]:
                    raise OSError(5)
                return {"m%d" % self.position: self.position}

        for position in range(4):
            sensors.add("s%d" % position, _Wire(position))
        changes = 0
        for _ in range(50):
            for position in range(4):
                if rng.chance(15):
                    states[position] = not states[position]
            found = sensors.read()
            found.pop("sensor_failures", None)
            equal(sorted(found), ["m%d" % position for position in range(4) if states[position]], "seed %d" % seed)
            ticks.advance(1000)
        assert len(log.records) <= 200 and changes == 0


def test_the_system_tells_what_it_knows_and_nothing_else():
    class _Wifi:
        dbm = None

        def rssi(self):
            return self.dbm

    ticks, clock = fakes.clock()
    timer = LoopTimer(clock)
    wifi = _Wifi()
    system = System(clock, timer, wifi)
    timer.start()
    ticks.advance(2500)
    timer.stop()
    found = system.read()
    found.pop("mem_free", None)
    equal(found, {"uptime_s": 2, "loop_ms": 2500})
    wifi.dbm = -61
    clock.drift_ppm = 12.5
    found = system.read()
    equal((found["rssi"], found["clock_drift_ppm"], found["loop_ms"]), (-61, 12.5, 0))
