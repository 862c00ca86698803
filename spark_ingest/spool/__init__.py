"""The spool: the durable store of received messages, until Spark has read them.

==============  =============================================================================================
``blocks``      the format on disk: blocks, segments, the durable position
``writer``      the writer of a spool: group commit, recovery after a crash
``view``        a reader's access to spools: their runs, durable positions, segments and bytes
``retire``      removes a spool whose collector will not come back
``messages``    reads a spool message by message, and verifies every byte
``properties``  decodes the properties of MQTT 5 that a message has
==============  =============================================================================================
"""
