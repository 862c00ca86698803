"""umqtt collect: runs the collector in the foreground."""

from __future__ import annotations

# It has many options, which `python -m spark_ingest.collector` shares.
from spark_ingest.collector.command import collect

__all__ = ["collect"]
