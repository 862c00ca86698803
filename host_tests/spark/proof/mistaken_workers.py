"""Spark's Python workers with a mistake of the pipeline planted in them: ``PLANTED_MISTAKE`` is its program text."""

import os

from pyspark import daemon

from . import mistakes

if __name__ == "__main__":
    mistakes.plant(os.environ["PLANTED_MISTAKE"])
    daemon.manager()
