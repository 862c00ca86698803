"""From any MQTT 3.1.1 broker to deduplicated Delta tables, none lost and none twice.

The packages, in the order in which a reading travels:

=============  ============================================================================================
``collector``  the process that makes messages durable in a spool and only then acknowledges them
``spool``      what was received, as it lies on disk: blocks, segments, the durable position
``source``     ``format("mqtt")`` for Spark, streaming and batch; it is a sink to a broker, too
``decoders``   what payloads mean: telemetry records, and other formats by topic
``pipeline``   the streaming query: what a micro-batch becomes in the tables, once
``report``     one HTML file that shows the fleet, from the gold tables
=============  ============================================================================================

Everywhere: ``errors`` (the tree of errors), ``durable`` (sync and atomic replacement), ``location`` (where tables lie),
``lock`` (who may write a folder), ``status``, ``metrics``, ``hosts`` (what may stand for one), ``java`` (whether Spark
can start); ``tables`` reads the tables without Spark, and ``sql`` gives them names in Spark, DuckDB and others.

Imports point one way (host_tests/architecture). Nothing here imports the broker or the command-line kit; the sink alone
imports the client. In a pipeline of your own::

    from spark_ingest import MqttDataSource

    spark.dataSource.register(MqttDataSource)
    messages = spark.readStream.format("mqtt").option("path", "spool").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .source.data_source import MqttDataSource

__all__ = ["MqttDataSource"]


def __getattr__(name: str) -> object:
    # When asked for: the collector runs where Spark is not installed.
    if name == "MqttDataSource":
        from .source.data_source import MqttDataSource

        return MqttDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
