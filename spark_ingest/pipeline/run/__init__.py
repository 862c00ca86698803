"""The process that runs the query.

=================  =============================================================================================
``command``        the command line; ``config`` has the settings that it makes
``pipeline``       the query, its upkeep and its status
``session``        the Spark session; ``spark_home`` is the folder that Spark starts from, ``class_archive`` makes the
                   archive of Java classes with which it starts sooner
``workers``        the process from which Spark forks its Python workers
``claim``          which pipeline may write the tables
``upkeep``         updates gold, joins small files and vacuums while the pipeline runs
``panel``          the live display; ``metrics``: the figures for Prometheus, and the health
``explain``        what would become of a message: ``umqtt decode``
=================  =============================================================================================
"""
