"""umqtt collect: the collector in the foreground."""

from __future__ import annotations

# Its options are many, and `python -m spark_ingest.collector` has the same.
from spark_ingest.collector.command import collect

__all__ = ["collect"]
