#!/bin/sh
# PySpark 4.3.0: a function of DataFrame.mapInArrow that returns before it has read all of its batches costs a process.
# The task succeeds, but its Python worker ends, although spark.python.worker.reuse is true, and the next task waits for
# the fork of another one, which imports again what it needs. A function that reads on and ignores the rest keeps its
# worker. Guessed: returning early is the cheaper way, and the worker is used again.
#
# Installs the packages in a temporary folder, states the versions, and fails if the behaviour has changed. It needs
# Java 17 or newer.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import os
import sys

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

print("pyspark", pyspark.__version__, "pyarrow", pa.__version__)
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.local.dir", sys.argv[1]).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.range(10, numPartitions=1)


def early(batches):
    next(batches)
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})


def to_the_end(batches):
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})


def workers(function):
    return len({rows.mapInArrow(function, "pid long").collect()[0].pid for _ in range(5)})


left, read = workers(early), workers(to_the_end)
print("workers of five jobs: the input was left unread:", left, "- read to the end:", read)
spark.stop()
assert left >= 4, "a worker that has not read its input is used again"
assert read <= 2, "a worker that has read its input is not used again"
PYTHON
