"""Loads the module of a sensor."""


def load(module):
    """Return the class Sensor of app/sensors/MODULE or /sensors/MODULE. Raises ImportError."""
    for package in ("app.sensors.", "sensors."):
        try:
            return __import__(package + module, None, None, ("Sensor",)).Sensor
        except ImportError as error:
            # Try the next package only if this module is missing, not if an import inside it fails.
            if module not in str(error) and "sensors" not in str(error):
                raise
    raise ImportError("no module app/sensors/%s.py or /sensors/%s.py" % (module, module))
