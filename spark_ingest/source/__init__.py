"""``format("mqtt")`` for Spark, streaming and batch: a source over spools, and a sink to a broker.

===============  ==========================================================================================
``offsets``      offsets of the source, limits, and cutting a range into partitions
``rows``         spool bytes to Arrow record batches
``topics``       topic filters
``options``      the options of the source, checked
``sink``         rows to messages at a broker, and the options of that
``data_source``  what Spark calls
===============  ==========================================================================================
"""
