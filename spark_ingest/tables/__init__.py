"""The tables, without Spark: their columns, appends, contents and maintenance. ::

    python -c 'from spark_ingest.tables import summary; print(summary("tables"))'

=============  ============================================================================================
``schemas``    the columns of every table, defined only here
``table``      data files that tasks have written, and places of messages
``delta``      a table: rows are appended once per micro-batch, even if it is replayed
``changes``    which rows were appended between two versions of a table
``upkeep``     compaction, vacuum, retention
``engine``     DuckDB in this process
``counts``     rows and identities, read with delta-rs and Arrow only
=============  ============================================================================================
"""

from .counts import IDENTITY_COLUMNS, Summary, identities, identity_table, summary

__all__ = ["IDENTITY_COLUMNS", "Summary", "identities", "identity_table", "summary"]
