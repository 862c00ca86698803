"""umqtt ingest: runs the Spark pipeline in the foreground."""

from __future__ import annotations

# It has many options, which `python -m spark_ingest.pipeline` and spark-submit share.
from spark_ingest.pipeline.command import ingest

__all__ = ["ingest"]
