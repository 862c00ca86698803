"""``format("mqtt")`` for Spark, streaming and batch.

===============  ==========================================================================================
``offsets``      offsets of the source, limits, and cutting a range into partitions
``rows``         spool bytes to Arrow record batches
``topics``       topic filters
``options``      the options, checked
``data_source``  what Spark calls
===============  ==========================================================================================
"""
