#!/bin/sh
# deltalake 1.6.6: QueryBuilder takes a dictionary of DataFusion's settings, but none of the `datafusion.runtime.*`
# ones, so a query through deltalake cannot be given a memory limit. Guessed: all settings of DataFusion are taken.
#
# Installs the packages in a temporary folder, states the versions, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import deltalake
from deltalake import QueryBuilder

print("deltalake", deltalake.__version__)
QueryBuilder({"datafusion.execution.batch_size": "1024"})
print("taken: datafusion.execution.batch_size")
try:
    QueryBuilder({"datafusion.runtime.memory_limit": "256M"})
except Exception as error:  # its class is not public
    print("refused: datafusion.runtime.memory_limit:", error)
else:
    raise SystemExit("the limit is taken now")
PYTHON
