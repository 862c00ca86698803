"""The streaming query that writes the messages of ``format("mqtt")`` into tables, each exactly once.

A room imports only those above it:

===============  ===============================================================================================
``process``      folders, checkpoints, the end of Spark's Java process, and messages about failures
``decode``       from messages to rows
``deduplicate``  which readings are new, and when they were taken
``write``        a micro-batch: the Spark program, its tasks, and the commits
``run``          the process that runs the query: ``python -m spark_ingest.pipeline``, ``submit`` for spark-submit
``change``       rebuilds tables, and removes devices from them
===============  ===============================================================================================
"""
