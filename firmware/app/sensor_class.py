"""Loads the module of a sensor and makes the sensor."""


def make(place, places):
    """Return the sensor of a place (app.sensors), and choose the prefix of its metrics. places: the earlier ones.

    Raises whatever its constructor does.
    """
    module, arguments = place.maker
    kind = load(module)
    if hasattr(kind, "metrics") and not place.names:
        # Before the hardware is asked: names must not depend on which sensor answers.
        place.names = names = tuple(kind.metrics)
        taken = [other.prefix + name for other in places for name in other.names]
        if [name for name in names if place.prefix + name in taken]:
            place.prefix += module + "_"
    return kind(**arguments)


def load(module):
    """Return the class Sensor of /sensors/MODULE or app/sensors/MODULE. Raises ImportError."""
    # The user's own come first: a driver that a later version brings under the same name replaces none of them.
    for package in ("sensors.", "app.sensors."):
        try:
            return __import__(package + module, None, None, ("Sensor",)).Sensor
        except ImportError as error:
            # Try the next package only if this module is missing, not if an import inside it fails.
            if module not in str(error) and "sensors" not in str(error):
                raise
    raise ImportError("no module app/sensors/%s.py or /sensors/%s.py" % (module, module))
