#!/bin/sh
# pycayennelpp 2.4.0 (Cayenne LPP): values are cut towards zero to the format's resolution, not rounded: a temperature of
# 21.49 becomes 21.4, -0.05 becomes 0.0, a humidity of 45.49 becomes 45.0. Guessed: the nearest value that the format has.
# Readings of such devices are low by half a step on average.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pycayennelpp==2.4.0"
cat > "$folder/program.py" <<'PYTHON'
from importlib.metadata import version

from cayennelpp import LppFrame

print("pycayennelpp", version("pycayennelpp"))
cases = [
    ("add_temperature", 21.49, 21.4),
    ("add_temperature", -0.05, 0.0),
    ("add_temperature", -21.45, -21.4),
    ("add_humidity", 45.49, 45.0),
    ("add_barometer", 1013.26, 1013.2),
    ("add_analog_input", 1.239, 1.23),
]
for method, given, seen in cases:
    frame = LppFrame()
    getattr(frame, method)(1, given)
    (value,) = LppFrame().from_bytes(bytes(frame)).data[0].value
    print(method, given, "->", value)
    assert value == seen, "changed"
PYTHON
"$folder/venv/bin/python" "$folder/program.py"
