"""A micro-batch, from ranges of the spool to committed files.

==============  ================================================================================================
``stream``      the Spark program: the steps as DataFrames
``tasks``       the work of Spark's tasks in each step
``job``         what all tasks of a micro-batch are given
``data_files``  the files that tasks write, and that belong to no table yet
``transform``   the job of a data engineer between deduplication and silver
``batch``       the driver: runs the tasks, and commits their files to the tables
==============  ================================================================================================
"""
