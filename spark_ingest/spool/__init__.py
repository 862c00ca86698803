"""The spool: what was received, until Spark has it.

============  =============================================================================================
``blocks``    blocks, segments and the durable position, as they lie on disk
``writer``    group commit, recovery after a crash
``view``      what a reader may see of a spool: its identity, durable position, segments and bytes
``access``    the protocols ``Spools`` and ``View`` that readers program against, and ``LocalSpools``
``frames``    how spools travel over TCP
``remote``    ``RemoteSpools``: spools that a collector serves
``retire``    the end of a spool whose collector will not come back
``messages``  a spool message by message, and the check of every byte of it
============  =============================================================================================
"""
