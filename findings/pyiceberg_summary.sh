#!/bin/sh
# pyiceberg 0.12.0: the summary of a snapshot looks like a mapping, but answers None for a key that is not there, so
# `in` is true for every key that one asks for. Guessed: KeyError, and `in` tells whether the key is there.
#
# Installs the package in a temporary folder, states its version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyiceberg==0.12.0
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from pyiceberg.table.snapshots import Operation, Summary

print("pyiceberg", version("pyiceberg"))
summary = Summary(Operation.APPEND, **{"added-records": "3"})
print("there:", summary["added-records"], "- not there:", summary["job"], "- 'job' in summary:", "job" in summary)
assert summary["job"] is None and "job" in summary, "a key that is not there is told now"
PYTHON
