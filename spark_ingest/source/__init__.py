"""``format("mqtt")`` for Spark, streaming and batch: a source that reads spools, a sink that publishes to a broker.

===============  ==========================================================================================
``offsets``      offsets of the source, limits of a micro-batch, partitions
``rows``         converts bytes of a spool to Arrow record batches
``topics``       topic filters
``options``      parses and checks the options of the source
``sink``         publishes rows as messages to a broker; options of the sink
``data_source``  the classes that Spark calls
===============  ==========================================================================================
"""
