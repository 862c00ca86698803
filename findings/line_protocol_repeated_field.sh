#!/bin/sh
# line-protocol-parser 2.0.1: a tag that stands twice in a line of InfluxDB's line protocol is refused, a field that
# stands twice is not: the first value is kept and the second one is gone without a word. Guessed: both are refused.
#
# Installs the package in a temporary folder, states its version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check line-protocol-parser==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from line_protocol_parser import LineFormatError, parse_line

print("line-protocol-parser", version("line-protocol-parser"))
try:
    parse_line("room,place=a,place=b temp=1 1700000000000000000")
    raise SystemExit("a repeated tag is accepted now")
except LineFormatError as error:
    print("a repeated tag:", error)
fields = parse_line("room,place=a temp=1,temp=2 1700000000000000000")["fields"]
print("a repeated field:", fields)
assert fields == {"temp": 1.0}, "a repeated field is no longer the first one"
PYTHON
