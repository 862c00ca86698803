"""The tables without Spark: their columns, how they are appended to, what is in them, their upkeep. ::

    python -c 'from spark_ingest.tables import summary; print(summary("tables"))'

=============  ============================================================================================
``schemas``    the columns of every table, the one home for them
``table``      what a pipeline asks of a table: rows appended once per micro-batch, whatever is replayed
``delta``      a Delta table that does it
``parquet``    plain Parquet files that do it
``changes``    which rows a table was given between two of its versions
``upkeep``     compaction, vacuum, retention
``iceberg``    Iceberg tables over the same files
``counts``     rows and identities, by delta-rs and Arrow alone
=============  ============================================================================================
"""

from .counts import IDENTITY_COLUMNS, Summary, identities, identity_table, summary

__all__ = ["IDENTITY_COLUMNS", "Summary", "identities", "identity_table", "summary"]
