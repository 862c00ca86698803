"""Ingests telemetry from any MQTT 5 or 3.1.1 broker into Delta tables, without losing or duplicating a reading.

The packages, in the order in which a reading passes through them:

=============  ============================================================================================
``collector``  the process that writes messages durably to a spool and only then acknowledges them
``spool``      the received messages on disk: blocks, segments, the durable position
``source``     ``format("mqtt")`` for Spark, streaming and batch: a source, and a sink to a broker
``decoders``   decode payloads: telemetry records, and other formats by topic
``pipeline``   the streaming query: writes each micro-batch to the tables exactly once
``report``     writes one HTML file that shows the fleet, from the tables
=============  ============================================================================================

Used by several packages: ``errors`` (the hierarchy of errors), ``durable`` (sync and atomic replacement),
``location`` (the location of tables), ``lock`` (the lock of a folder), ``status`` (status files), ``metrics`` (HTTP
server for Prometheus), ``hosts`` (checks of host names), ``java`` (check for the Java that Spark needs). ``tables``
reads the tables without Spark, and ``sql`` makes them available by name in Spark, DuckDB and other engines.
``alerts`` has the rules of alerts and sends messages about them.

Imports go in one direction (host_tests/architecture). Nothing here imports the broker or the command-line kit, and
only the sink imports the client. In a pipeline of your own::

    from spark_ingest import MqttDataSource

    spark.dataSource.register(MqttDataSource)
    messages = spark.readStream.format("mqtt").option("path", "spool").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .source.data_source import MqttDataSource

__all__ = ["MqttDataSource"]


def __getattr__(name: str) -> object:
    # Imported on first use, because the collector also runs where Spark is not installed.
    if name == "MqttDataSource":
        from .source.data_source import MqttDataSource

        return MqttDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
