"""The streaming query that writes the messages of ``format("mqtt")`` into tables, each exactly once.

=================  =============================================================================================
``messages``       assign messages to tables by their topics
``record``         turn telemetry records into rows of tables
``foreign``        turn messages that a decoder of ingest.toml reads into rows of tables
``clock``          find out when a reading was taken, even if the device's clock is wrong
``dedup``          find the new readings: the set of readings seen, as the highest seq and the open gaps per boot
``progress``       store that set in immutable files per micro-batch
``births``         store the content of Sparkplug's births in immutable files per micro-batch
``silver``         make rows of silver, and sort readings that silver already has into duplicates and conflicts
``stream``         the Spark program: the steps of a micro-batch as DataFrames
``tasks``          the work of Spark's tasks in each step; ``job`` is what all of them are given, ``data_files`` writes
                   their files
``transform``      the job of a data engineer between deduplication and silver
``batch``          one micro-batch on the driver: run its tasks, commit their files to the tables
``claim``          which pipeline may write the tables
``rebuild``        rebuild silver, the tables beside it and gold from bronze
``delete_device``  remove a device from every table
``upkeep``         update gold, join small files and vacuum while the pipeline runs
``process``        folders, checkpoints, the end of Spark's Java process, and messages about failures
``metrics``        the figures for Prometheus, and the health
``panel``          the live display
``workers``        the process from which Spark forks its Python workers
``session``        the Spark session; ``spark_home`` is the folder that Spark starts from, ``class_archive`` makes
                   the archive of Java classes with which it starts sooner
``config``         the settings of a pipeline
``pipeline``       the process that runs the query
``command``        the command line: ``python -m spark_ingest.pipeline``; ``submit`` is the one for ``spark-submit``
=================  =============================================================================================
"""
