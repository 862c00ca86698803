"""umqtt ingest: runs the Spark pipeline in the foreground."""

from __future__ import annotations

# The command is defined there, because it shares its many options with `python -m spark_ingest.pipeline` and
# spark-submit.
from spark_ingest.pipeline.run.command import ingest

__all__ = ["ingest"]
