"""Every driver gives what its data sheet says, and nothing where its chip or its wire is wrong."""

import os

import _app_fakes as fakes
from _drivers import ROWS, Bus, Wired, bosch
from app.sensors import Sensors
from umqtt_testkit.portable import Rng, equal, new_path, raises

HEAP = "1M"


class _Stream(Bus):
    """A chip whose register gives one answer after the other."""

    def _answer(self, key, count):
        found = self.answers.get(key)
        return found.pop(0) if self.fill is None and isinstance(found, list) else Bus._answer(self, key, count)


def _boot(row, raw, changes=None):
    """Return (context, sensors, log, wire) of a board with this driver whose chip has measured the raw values."""
    wire = row.wire(*raw)
    wire.update(changes or {})
    if row.address:
        wire = {"i2c": _Stream(row.address, wire)}
    context = Wired(wire)
    context.__enter__()
    log = fakes.Log()
    sensors = Sensors(fakes.clock()[1], log.report)
    entry = {"module": row.module}
    entry.update(row.entry)
    sensors.configure(entry)
    return context, sensors, log, wire


def _read(row, raw, changes=None, before=lambda wire: None):
    """Return (metrics, text of the failure or None) of the first reading."""
    context, sensors, log, wire = _boot(row, raw, changes)
    try:
        before(wire)
        sensors.start()
        found = sensors.read()
    finally:
        context.__exit__(None, None, None)
    failures = found.pop("sensor_failures", 0)
    equal(bool(failures), bool(log.records), row.module)
    return found, log.records[0][1] if log.records else None


def _alike(row, raw, found, wanted):
    equal(sorted(found), sorted(wanted), (row.module, raw, found))
    for name in wanted:
        # A board has floats of 32 bits; metrics are rounded.
        step = 0.51 if name.endswith(("_mm", "_ohm")) else 0.051
        near = abs(found[name] - wanted[name]) <= step + abs(wanted[name]) * 1e-5
        assert near, (row.module, raw, name, found, wanted)


def test_the_values_of_the_data_sheets():
    """Planted: the bus register of an INA219 is shifted by 2."""
    for row in ROWS:
        raw, wanted = row.example
        found, problem = _read(row, raw)
        equal((row.module, problem), (row.module, None))
        _alike(row, raw, found, wanted)


def test_random_values_mean_what_the_formulas_say_and_what_is_out_of_range_is_no_value():
    """Planted: the INA219's shunt is read without its sign; nothing is out of range."""
    rng = Rng(49)
    for row in ROWS:
        ranges = _ranges(row)
        for _ in range(25):
            raw = [rng.below(1 << bits) for bits in row.bits]
            found, problem = _read(row, raw)
            means = row.means(*raw)
            if isinstance(means, str):
                assert means in problem, (row.module, raw, problem)
                continue
            for name in list(means):
                low, high = ranges[name]
                if min(abs(means[name] - low), abs(means[name] - high)) <= 0.06:  # it may be rounded into its range
                    found.pop(name, None)
                    means.pop(name)
                elif not low <= means[name] <= high:
                    means.pop(name)
                    assert "out of range" in problem, (row.module, raw, name, problem)
            _alike(row, raw, found, means)


def _ranges(row):
    context, sensors, _, _ = _boot(row, row.example[0])
    context.__exit__(None, None, None)
    return sensors._places[0].sensor.metrics


def test_what_was_not_measured_gives_nothing():
    """Planted: an ADS1115 that has not converted is read."""
    for row in ROWS:
        for changes, text in row.silent:
            found, problem = _read(row, row.example[0], changes)
            found.pop("satellites", None)
            equal((row.module, found), (row.module, {}))
            assert text in (problem or ""), (row.module, text, problem)


def test_every_bit_that_comes_wrong_is_noticed():
    """Planted: the checksum of the second word is not looked at."""
    for row in ROWS:
        for key, answer in row.wire(*row.example[0]).items() if row.checked else ():
            for bit in range(8 * len(answer)):
                wrong = bytearray(answer)
                wrong[bit // 8] ^= 1 << bit % 8
                if len(answer) > 1:
                    found, problem = _read(row, row.example[0], {key: bytes(wrong)})
                    assert not found and problem, (row.module, key, bit)


def test_a_bus_that_fails_or_is_shorted_gives_nothing():
    """Planted: a BH1750 that reads all ones is a bright light."""
    for row in ROWS:
        if not row.address:
            continue
        for fill, broken in ((0, False), (0xFF, False), (None, True)):

            def spoil(wire, fill=fill, broken=broken):
                wire["i2c"].fill, wire["i2c"].broken = fill, broken

            found, problem = _read(row, row.example[0], before=spoil)
            wanted = row.zeros if fill == 0 and row.zeros else {}
            equal((row.module, fill, found), (row.module, fill, wanted))
            assert wanted or problem, (row.module, fill)


def test_a_chip_that_is_not_there_is_told_with_what_is():
    """Planted: the text has no other addresses."""
    for row in ROWS:
        if not row.address:
            continue
        for there, text in (
            (None, "nothing at any other: look at SDA, SCL and the power"),
            (0x77, "0x77 answers: a BME280 by its id"),
            (0x5C, "0x5c answers: a BH1750 by its address"),
            (0x11, "0x11 answers"),
        ):

            def move(entry, there=there):
                return {"i2c": Bus(there, {b"\xd0": b"\x60"})}

            with Wired(move(None)):
                log = fakes.Log()
                sensors = Sensors(fakes.clock()[1], log.report)
                entry = {"module": row.module}
                entry.update(row.entry)
                sensors.configure(entry)
            said = log.records[0][1]
            assert "nothing answers at 0x%02x; " % row.address in said and text in said, said


def test_a_bme680_whose_gas_sensor_was_cold_gives_the_rest_and_says_so():
    """Planted: the resistance of a cold sensor is sent; the error of the gas sensor has no sign."""
    rows = [row for row in ROWS if row.module == "bme680"]
    _alike(
        rows[0],
        "-2",
        _read(rows[0], rows[0].example[0], bosch(0, -2)[0](*rows[0].example[0]))[0],
        {"temp_c": 22.01, "pressure_hpa": 1030.73, "humidity_pct": 37.185, "gas_ohm": 59064},
    )
    for row in rows:
        raw = row.example[0]
        for good in (0, 0x10, 0x20):
            found, problem = _read(row, raw, row.wire(*raw, good=good))
            equal(sorted(found), ["humidity_pct", "pressure_hpa", "temp_c"])
            assert "the heater of the gas sensor was not hot" in problem, problem
        context, sensors, _, wire = _boot(row, raw)
        try:
            sensors.start()
        finally:
            context.__exit__(None, None, None)
        # 320 °C by Bosch's own code; 100 ms; the bit of each chip that starts the gas sensor.
        gas = b"\x20" if wire["i2c"].answers[b"\xf0"] == b"\1" else b"\x10"
        equal([wire["i2c"].answers[key] for key in (b"\x5a", b"\x64", b"\x71")], [b"\x76", b"\x59", gas])


def test_a_scd4x_that_lost_its_power_is_started_again():
    row = [row for row in ROWS if row.module == "scd4x"][0]
    context, sensors, log, wire = _boot(row, row.example[0], {b"\xe4\xb8": b"\x80\x00\xa2"})
    try:
        for _ in range(3):
            equal(sensors.read(), {})
            context.clock.advance(5000)
        wire["i2c"].last = b""
        equal(sensors.read(), {"sensor_failures": 1})
        equal(wire["i2c"].last, b"\x21\xb1")
    finally:
        context.__exit__(None, None, None)


def test_a_count_survives_resets_and_half_a_file_and_never_falls():
    """Planted: the count is kept in RAM alone; the newer of two copies is the only one."""
    folder = new_path("pulses")
    os.mkdir(folder)
    for boot in range(4):
        with Wired({}) as board:
            from app.sensors.pulses import Sensor

            Sensor.folder = folder
            sensor = Sensor(4, metric="water_m3", per_pulse=0.5, first=100)
            equal(sensor.read(), {"water_m3": 100 + boot * 1.5})
            for _ in range(3):
                for _ in range(2):  # the second edge is a bounce
                    board.machine.pins[4].handler(None)
                    board.clock.advance(5)
                board.clock.advance(50)
            equal(sensor.read(), {"water_m3": 101.5 + boot * 1.5})
    # A power cut while the next count is written.
    with open(folder + ("/pulses-4" if 13 % 2 else "/pulses-4.1"), "w") as file:
        file.write("13")
    with Wired({}):
        from app.sensors.pulses import Sensor

        Sensor.folder = folder
        equal(Sensor(4).read(), {"pulses": 12})


def test_an_output_returns_to_its_safe_state_by_itself():
    """Planted: the timer does not end the order; a relay is on before it is told so."""
    from app.act_output import run
    from app.commands import CommandError

    for entry, on, safe in (
        ({"module": "relay", "pin": 5, "name": "pump"}, 1, 0),
        ({"module": "relay", "pin": 5, "name": "pump", "inverted": True}, 0, 1),
        ({"module": "relay", "pin": 5, "name": "pump", "safe": 1}, 1, 1),
        ({"module": "pwm", "pin": 5, "name": "pump"}, 65535, 0),
    ):
        with Wired({}) as board:

            class Board:
                sensors = Sensors(fakes.clock()[1], fakes.Log().report)

            Board.sensors.configure(entry)
            pin = board.machine.pins[5]
            equal(pin.level, safe, entry)
            equal(run(Board, {"name": "pump", "value": 1, "for_s": 3})["for_s"], 3)
            equal((pin.level, Board.sensors.read()), (on, {"pump_output": 1}))
            ticks = 0
            while Board.sensors.read()["pump_output"] != entry.get("safe", 0) and ticks < 10:
                board.machine.timers[0].callback(None)
                ticks += 1
            equal((pin.level, ticks, len(board.machine.timers)), (safe, 0 if "safe" in entry else 4, 1))
            for args, text in (
                ({"name": "lamp", "value": 1, "for_s": 1}, "name: must be one of the outputs: pump"),
                ({"name": "pump", "value": 2, "for_s": 1}, "value"),
                ({"name": "pump", "value": "1", "for_s": 1}, "value"),
                ({"name": "pump", "value": 1}, "for_s"),
                ({"name": "pump", "value": 1, "for_s": 3601}, "for_s"),
            ):
                assert text in str(raises(CommandError, run, Board, args)), args
