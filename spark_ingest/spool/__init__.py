"""The spool: the durable store of received messages, until Spark has read them.

==============  =============================================================================================
``blocks``      the format on disk: blocks, segments, the durable position
``writer``      the writer of a spool: group commit, recovery after a crash
``view``        a reader's access to a local spool: its runs, durable position, segments and bytes
``access``      ``Spools`` and ``View``, the protocols that readers use, and ``LocalSpools``
``copier``      copies the spools of a folder to an object store
``copied``      the layout of these copies, and ``CopiedSpools``, which reads them
``retire``      removes a spool whose collector will not come back
``messages``    reads a spool message by message, and verifies every byte
``properties``  decodes the properties of MQTT 5 that a message has
==============  =============================================================================================
"""
