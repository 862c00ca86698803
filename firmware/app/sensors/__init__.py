"""The sensors of this board: one module for each kind of sensor, loaded if the settings name it.

A module has a class Sensor. Its constructor takes the other keys of its settings entry as keyword arguments; read()
returns a dict of names and numbers. A value that was not measured is left out. Both may raise any exception if the
hardware does not answer. A sensor that needs time to measure also has start(), and lead_ms: how many milliseconds
before read() start() has to be called. `metrics` of the class or of its object are the metrics it may give, with their
ranges: {"temp_c": (-40, 80)}. `problem` of the object says after read() why a value is missing, None: none is.

    /settings.json      {"sensors": [{"module": "greenhouse", "pin": 4, "name": "north"}]}
    /sensors/greenhouse.py
        import machine

        class Sensor:
            def __init__(self, pin):
                self._pin = machine.Pin(pin, machine.Pin.IN)

            def read(self):
                return {"door_open": self._pin.value()}

This gives the metric north_door_open. If a sensor earlier in the settings has `metrics` of the same name, the name of
the module is added to the prefix: dht22_temp_c. A value out of its range is left out. Modules are looked for in
/sensors, where no update touches them, and then here, in app/sensors. The suffix of a name gives the unit: see
discovery.py.
"""

from app.modules import once

# A sensor whose constructor failed is tried again after this time: it may be plugged in by then.
_MAKE_AGAIN_MS = 30_000


class Sensors:
    """All sensors of a board, read together. clock: app.clock.Clock; report(level, text): of a log.

    lead_ms: how many ms before read() start() has to be called, 0: not at all. failures: count of failed readings.
    """

    def __init__(self, clock, report):
        self._clock = clock
        self._report = report
        self._places = []
        self.lead_ms = 0
        self.failures = 0
        self._problem = None  # of the sensor that is read

    def add(self, label, sensor):
        """Add an existing sensor. label: its name in the log."""
        self._places.append(_Place(label, "", None, sensor))
        self.lead_ms = max(self.lead_ms, getattr(sensor, "lead_ms", 0))

    def configure(self, entry):
        """Add a sensor by its settings entry: {"module": …, "name": …, further keys for its constructor}."""
        arguments = dict(entry)
        module = arguments.pop("module")
        name = arguments.pop("name", "")
        place = _Place(name or module, name and name + "_", (module, arguments))
        self._try(place, self._make, place)
        self._places.append(place)

    def start(self):
        """Start the measurements of the sensors that need time."""
        for place in self._places:
            if place.sensor and hasattr(place.sensor, "start"):
                place.started = self._try(place, self._start, place)

    def read(self):
        """Return the metrics of all sensors that answer. A failing one is reported once, and when it recovers."""
        metrics = {}
        for place in self._places:
            found = self._try(place, self._read, place, metrics)
            if found:
                metrics.update(found)
            if found is not None:
                if self._problem:
                    self._fail(place, self._problem)
                elif found and place.failed:
                    place.failed = not self._report("info", "sensor %s: answers again" % place.label)
        if self.failures:
            metrics["sensor_failures"] = self.failures
        return metrics

    def outputs(self):
        """Return the sensors that can be switched (see relay.py) by their names in the log."""
        return {place.label: place.sensor for place in self._places if hasattr(place.sensor, "switch")}

    def _make(self, place):
        place.again_ms = self._clock.uptime_ms() + _MAKE_AGAIN_MS
        place.sensor = once("sensor_class", "make", place, self._places)
        # Rounded up to a whole number of ms, whatever a driver says: the main loop waits whole ones.
        self.lead_ms = max(self.lead_ms, int(getattr(place.sensor, "lead_ms", 0) + 0.999))

    def _start(self, place):
        place.sensor.start()
        return True

    def _read(self, place, others):
        if place.sensor is None:
            if self._clock.uptime_ms() >= place.again_ms:
                self._make(place)
            return None
        if hasattr(place.sensor, "start"):
            # A sensor that came back between start() and read() has measured nothing yet.
            if not place.started:
                return None
            place.started = False
        sensor = place.sensor
        found = sensor.read()
        self._problem = getattr(sensor, "problem", None)
        ranges = getattr(sensor, "metrics", {})
        checked = {}
        for name, value in found.items():
            # 0 + value turns True and False into numbers, which JSON would write as true and false.
            if value is not None and not isinstance(value, (bool, int, float)):
                raise TypeError("%s: %r is not a number" % (name, value))
            if value is not None and name in ranges and not ranges[name][0] <= value <= ranges[name][1]:
                self._problem = "%s: %s is out of range" % (name, value)
                continue
            name = place.prefix + name
            if name in others:
                self._problem = "another sensor gives %s: give one of them a name" % name
                continue
            # JSON has no NaN and no infinity, though json.dumps would write them: they become null.
            checked[name] = None if value is None or 0 * value != 0 else 0 + value
        return checked

    def _try(self, place, function, *arguments):
        try:
            return function(*arguments)
        # Drivers and users' modules raise anything, even plain Exception; it must not stop the other sensors.
        except Exception as error:  # noqa: BLE001
            self._fail(place, repr(error))
            return None

    def _fail(self, place, problem):
        self.failures += 1
        # Once, not at every reading: a broken wire must not fill the outbox.
        if not place.failed:
            place.failed = self._report("warning", "sensor %s: %s" % (place.label, problem))


class _Place:
    again_ms = 0
    failed = started = False
    names = ()  # of the class's metrics

    def __init__(self, label, prefix, maker, sensor=None):
        self.label = label
        self.prefix = prefix
        self.maker = maker  # module and keyword arguments
        self.sensor = sensor
