"""umqtt ingest: the Spark pipeline in the foreground."""

from __future__ import annotations

# Its options are many, and `python -m spark_ingest.pipeline` and spark-submit have the same.
from spark_ingest.pipeline.command import ingest

__all__ = ["ingest"]
