"""From any MQTT 3.1.1 broker to deduplicated Delta tables, none lost and none twice.

The folder, in the order in which a reading travels:

=================  ====================================================================================
``wire``           MQTT bytes: the few packets a collector sends, and the splitting of what it receives
``link``           one TCP connection to a broker: bytes in, bytes out, keep-alive
``collector``      the process that makes messages durable in a spool and only then acknowledges them
``spool_format``   blocks, segments and the durable position, as they lie on disk
``spool``          the writer: group commit, recovery after a crash
``spool_reader``   what a reader may see of a spool: its identity, durable position and segments
``offsets``        offsets of the source, limits, and cutting a range into partitions
``rows``           spool bytes to Arrow record batches
``source``         ``format("mqtt")`` for Spark, streaming and batch
``record``         the telemetry record: the one place that knows its fields and how to check them
``clock``          when a reading was taken, although the device's clock may be wrong
``dedup``          which readings are new: a set kept as highest seq and open gaps per boot
``progress``       that set, as one immutable file a micro-batch
``delta``          appending to Delta tables once per micro-batch, whatever is replayed
``batch``          one micro-batch: decode, deduplicate, commit
``session``        the Spark session, and the check for Java before it
``pipeline``       the process that runs the streaming query
``tables``         reading the tables without Spark
=================  ====================================================================================

Everywhere: ``errors`` (the tree of errors), ``durable`` (sync and atomic replacement), ``backoff``, ``status``.

Imports point upwards in that list. Nothing here imports the broker, the device library or the command-line
kit.
"""
