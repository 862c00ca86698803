"""The spool: what was received, until Spark has it.

============  =============================================================================================
``blocks``    blocks, segments and the durable position, as they lie on disk
``writer``    group commit, recovery after a crash
``view``      what a reader may see of a spool: its identity, durable position, segments and bytes
``access``    the protocols ``Spools`` and ``View`` that readers program against, and ``LocalSpools``
``server``    serves a tree of spools over HTTPS
``remote``    ``RemoteSpools``: spools that a collector serves
``tokens``    the secrets of a server: a token to read, another to delete
``retire``    the end of a spool whose collector will not come back
``messages``  a spool message by message, and the check of every byte of it
============  =============================================================================================
"""
