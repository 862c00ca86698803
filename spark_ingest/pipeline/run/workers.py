"""The process from which Spark forks its Python workers: it has imported what their tasks need.

Each worker that Spark starts would otherwise import numpy, Arrow and delta-rs anew, for seconds and 100 MB.
"""

import gc

from pyspark import daemon

from ..write import stream  # noqa: F401 - for the workers

if __name__ == "__main__":
    # Workers share what exists by now, and never look through it for garbage.
    gc.collect()
    gc.freeze()
    daemon.manager()
