#!/bin/sh
# deltalake 1.6.6 with pyarrow 26.0.1: DeltaStorageHandler, the public file system of delta-rs, can read and delete
# objects, but its output stream takes bytes only, and pyarrow hands it a Buffer: every write fails, directly and
# through pyarrow's PyFileSystem. What pyarrow's BufferedOutputStream flushes from its buffer arrives as bytes and is
# written. Guessed: a stream of pyarrow takes what other streams of pyarrow take.
#
# Installs the two packages in a temporary folder, states the versions, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler

print("deltalake", deltalake.__version__, "pyarrow", pa.__version__)
root = Path(sys.argv[1])
handler = DeltaStorageHandler(f"file://{root}")


def refused(stream):
    try:
        stream.write(b"data")
        stream.close()
    except TypeError as error:
        print("refused:", error)
        return True
    return False


assert refused(handler.open_output_stream("direct")), "it writes now"
assert refused(pyarrow.fs.PyFileSystem(handler).open_output_stream("by_file_system")), "it writes now"
stream = pa.BufferedOutputStream(handler.open_output_stream("buffered"), 100)
stream.write(b"data")
stream.close()
assert (root / "buffered").read_bytes() == b"data", "the buffer's flush does not write any more"
print("written: what a buffer flushes")
PYTHON
