"""umqtt collect: runs the collector in the foreground."""

from __future__ import annotations

# The command is defined there, because it shares its many options with `python -m spark_ingest.collector`.
from spark_ingest.collector.command import collect

__all__ = ["collect"]
