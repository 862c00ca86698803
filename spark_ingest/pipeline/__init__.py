"""The streaming query: from ``format("mqtt")`` to tables, once.

============  =============================================================================================
``messages``  which table a message belongs to, by its topic
``record``    telemetry records as rows of tables
``foreign``   likewise what the decoders of ingest.toml read
``clock``     when a reading was taken, although the device's clock may be wrong
``dedup``     which readings are new: a set kept as highest seq and open gaps per boot
``progress``  that set, as immutable files per micro-batch
``births``    likewise what Sparkplug's births have said
``silver``    rows of silver, and what becomes of readings that it already has
``batch``     one micro-batch: decode, deduplicate, commit to bronze, silver and the tables beside it
``cluster``   the same on executors: ``cluster_tasks`` writes ``cluster_files``, the driver commits
``gold``      what people look at, from what silver has committed: ``gold_state`` is what it remembers,
              ``gold_tables`` and ``gold_windows`` what it writes, ``columns`` numpy arrays by key
``rebuild``   silver, the tables beside it and gold anew from bronze
``forget``    a device out of every table
``upkeep``    gold and the joining of small files, beside the micro-batches
``process``   locks, folders, and what is said when the query fails
``metrics``   its figures for Prometheus, and its health
``live``      what a person sees meanwhile; ``remarks`` keeps other people's lines out of the panel
``session``   the Spark session, and the check for Java before it; ``spark_home`` where Spark starts from,
              ``class_archive`` what makes it start sooner
``config``    what a pipeline is started with
``pipeline``  the process that runs the query
``command``   its command line: ``python -m spark_ingest.pipeline``
============  =============================================================================================
"""
