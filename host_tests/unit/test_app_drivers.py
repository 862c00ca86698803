"""Each driver leaves out what its chip cannot have measured, and each DS18B20 fails alone and keeps its name."""

import os
import sys

import _app_fakes as fakes
from app import sensor_class
from app.sensors import Sensors
from umqtt_testkit.portable import Clock, equal, new_path, raises


class _Module:
    def __init__(self, **names):
        for name in names:
            setattr(self, name, names[name])


class _Wire:
    """A 1-wire bus with the driver of micropython-lib on it. roms: scratchpads of nine bytes, or None: cut off."""

    roms = {}

    def __init__(self, pin):
        self.noise = []

    def scan(self):
        return [bytearray(rom) for rom in self.roms if self.roms[rom] is not None] + self.noise

    def crc8(self, data):
        crc = 0
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x8C if crc & 1 else 0)
        return crc


class _Driver:
    def __init__(self, wire):
        self.ow = wire

    def scan(self):
        return self.ow.scan()

    def convert_temp(self):
        pass

    def read_scratch(self, rom):
        data = self.ow.roms[bytes(rom)] or b"\xff" * 9
        if self.ow.crc8(data):
            raise Exception("CRC error")
        return data

    def read_temp(self, rom):
        data = self.read_scratch(rom)
        value = data[1] << 8 | data[0]
        return (value - 65536 if value & 0x8000 else value) / 16


def _rom(*serial):
    rom = bytes((0x28,) + serial)
    return rom + bytes((_Wire(0).crc8(rom),))


def _scratch(celsius):
    value = int(celsius * 16) & 0xFFFF
    data = bytes((value & 255, value >> 8)) + b"\x4b\x46\x7f\xff\x0c\x10"
    return data + bytes((_Wire(0).crc8(data),))


# The codes of one batch end alike.
_A, _B, _C = _rom(1, 2, 3, 9, 0, 0), _rom(7, 2, 3, 9, 0, 0), _rom(1, 2, 3, 8, 0, 0)


class _Ds18b20:
    """The driver of the firmware, whose folder /state is a new one."""

    def __enter__(self):
        self.folder = new_path("wire")
        os.mkdir(self.folder)
        self._modules = {name: sys.modules.get(name) for name in ("ds18x20", "onewire", "machine")}
        sys.modules["onewire"] = _Module(OneWire=_Wire)
        sys.modules["ds18x20"] = _Module(DS18X20=_Driver)
        sys.modules["machine"] = _Module(Pin=int)
        sys.modules.pop("app.sensors.ds18b20", None)
        self.kind = sensor_class.load("ds18b20")
        self.kind.folder = self.folder
        _Wire.roms = {}
        return self

    def __exit__(self, kind, error, trace):
        for name in self._modules:
            sys.modules.pop(name)
            if self._modules[name]:
                sys.modules[name] = self._modules[name]
        sys.modules.pop("app.sensors.ds18b20", None)

    def boot(self):
        """Return the sensor after a start, and its first reading."""
        sensor = self.kind(4)
        sensor.start()
        return sensor, sensor.read()


def test_a_probe_keeps_its_name_whichever_others_answer():
    # Planted: a probe that is alone gives temp_c.
    with _Ds18b20() as wire:
        _Wire.roms = {_A: _scratch(20), _C: _scratch(30)}
        both = {"temp_090000_c": 20, "temp_080000_c": 30}
        equal(wire.boot()[1], both)
        _Wire.roms[_A] = None
        sensor, found = wire.boot()
        equal(found, {"temp_080000_c": 30})
        assert "CRC error" in sensor.problem and sensor.problem.startswith("28010203"), sensor.problem
        _Wire.roms = {_A: _scratch(21), _C: _scratch(30), _B: _scratch(25)}
        equal(wire.boot()[1], {"temp_090000_c": 21, "temp_080000_c": 30, "temp_070203090000_c": 25})


def test_the_first_probe_gives_temp_c_for_ever():
    with _Ds18b20() as wire:
        _Wire.roms = {_A: _scratch(-10.5)}
        equal(wire.boot()[1], {"temp_c": -10.5})
        _Wire.roms[_B] = _scratch(25)
        equal(wire.boot()[1], {"temp_c": -10.5, "temp_090000_c": 25})
        _Wire.roms[_A] = None
        equal(wire.boot()[1], {"temp_090000_c": 25})


def test_each_probe_fails_alone():
    # Planted: one bad probe loses all of the wire.
    with _Ds18b20() as wire:
        _Wire.roms = {_A: _scratch(20), _B: _scratch(25), _C: _scratch(30)}
        sensor, everything = wire.boot()
        equal(len(everything), 3)
        for scratch, text in (
            (None, "CRC error"),
            (_scratch(85), "no power"),
            (bytes(9), "all zeros"),
            (_scratch(20)[:8] + b"\0", "CRC error"),
        ):
            _Wire.roms[_B] = scratch
            equal(sorted(sensor.read().values()), [20, 30])
            assert text in sensor.problem, sensor.problem
        _Wire.roms[_B] = _scratch(0)
        equal(sorted(sensor.read().values()), [0, 20, 30])
        equal(sensor.problem, None)


def test_a_code_that_was_read_wrong_is_no_probe():
    with _Ds18b20() as wire:
        _Wire.roms = {_A: _scratch(20), _A[:7] + b"\0": _scratch(99)}
        equal(wire.boot()[1], {"temp_c": 20})
        _Wire.roms = {_B[:7] + b"\0": _scratch(99)}
        wire.kind.folder = new_path("none")
        raises(OSError, wire.kind, 5)


class _Dht:
    """A DHT22 with the driver of micropython-lib. frame: four bytes; their checksum is right."""

    frame = b""

    def __init__(self, pin):
        pass

    def measure(self):
        pass

    def humidity(self):
        return (self.frame[0] << 8 | self.frame[1]) * 0.1

    def temperature(self):
        tenths = ((self.frame[2] & 0x7F) << 8 | self.frame[3]) * 0.1
        return -tenths if self.frame[2] & 0x80 else tenths


def test_a_dht22_gives_what_it_measured_or_nothing():
    # Planted: the driver's values are taken as they are.
    modules = {name: sys.modules.get(name) for name in ("dht", "machine", "time")}
    sys.modules["time"] = Clock()
    sys.modules["dht"] = _Module(DHT22=_Dht)
    sys.modules["machine"] = _Module(Pin=int)
    try:
        for frame, wanted in (
            (b"\x02\x28\x00\xe0", {"temp_c": 22.4, "humidity_pct": 55.2}),
            (b"\x02\x28\x80\x05", {"temp_c": -0.5, "humidity_pct": 55.2}),
            (b"\x02\x28\xff\xfb", {"temp_c": -0.5, "humidity_pct": 55.2}),  # a clone
            (b"\x28\x00\x17\x00", "DHT11"),
            (b"\0\0\0\0", "all zeros"),
            (b"\x02\x28\x03\xe8", {"humidity_pct": 55.2}),  # 100 °C
        ):
            sys.modules.pop("app.sensors.dht22", None)
            log = fakes.Log()
            sensors = Sensors(fakes.clock()[1], log.report)
            sensors.configure({"module": "dht22", "pin": 4})
            _Dht.frame = frame
            found = sensors.read()
            failures = found.pop("sensor_failures", 0)
            if isinstance(wanted, str):
                equal(found, {})
                assert wanted in log.records[0][1], log.records
            else:
                equal(found, wanted)
            equal(failures, len(log.records))
            equal(failures, 0 if len(found) == 2 else 1)
    finally:
        for name in modules:
            sys.modules.pop(name)
            if modules[name]:
                sys.modules[name] = modules[name]


def _named(**metrics):
    class Sensor:
        def __init__(self, fails=False):
            if fails:
                raise OSError(5)

        def read(self):
            return {name: metrics[name][2] for name in metrics}

    Sensor.metrics = {name: metrics[name][:2] for name in metrics}
    return Sensor


def test_two_sensors_with_one_metric_are_named_apart_whichever_answers():
    # Planted: the last sensor's value replaces the others'.
    one = _named(temp_c=(-40, 80, 20), pressure_hpa=(300, 1100, 1000))
    two = _named(temp_c=(-40, 80, 30), humidity_pct=(0, 100, 50))
    for fails in (False, True):
        log = fakes.Log()
        sensors = Sensors(fakes.clock()[1], log.report)
        sys.modules["app.sensors.one"] = _Module(Sensor=one)
        sensors.configure({"module": "one", "fails": fails})
        sys.modules["app.sensors.two"] = _Module(Sensor=two)
        sensors.configure({"module": "two"})
        sys.modules["app.sensors.two"] = _Module(Sensor=two)
        sensors.configure({"module": "two", "name": "attic"})
        found = sensors.read()
        found.pop("sensor_failures", 0)
        wanted = {"two_temp_c": 30, "two_humidity_pct": 50, "attic_temp_c": 30, "attic_humidity_pct": 50}
        if not fails:
            wanted.update({"temp_c": 20, "pressure_hpa": 1000})
        equal(found, wanted)


def test_a_metric_that_two_sensors_give_unannounced_is_reported_and_the_first_one_kept():
    class Own:
        def __init__(self, value):
            self._value = value

        def read(self):
            return {"level_m": self._value}

    log = fakes.Log()
    sensors = Sensors(fakes.clock()[1], log.report)
    sensors.add("one", Own(1))
    sensors.add("two", Own(2))
    equal(sensors.read(), {"level_m": 1, "sensor_failures": 1})
    equal(log.records[0][1], "sensor two: another sensor gives level_m: give one of them a name")


def test_a_value_out_of_its_range_is_left_out_counted_and_named():
    log = fakes.Log()
    sensors = Sensors(fakes.clock()[1], log.report)
    sensors.add("wall", _named(temp_c=(-40, 80, 588.8), humidity_pct=(0, 100, float("nan")), volts=(0, 9, 5))())
    equal(sensors.read(), {"volts": 5, "sensor_failures": 1})
    assert log.records[0][1].endswith("is out of range"), log.records
