"""The parts of the ingestion's proof (``prove.py``).

============  =================================================================================================
``fleet``     what devices publish, from a seed, and where it must end up
``kinds``     payloads of other kinds and sizes in it
``publisher`` a publisher that keeps what is not acknowledged, as a device with flash does
``chain``     broker, collector and pipeline as processes that can be killed and are started again
``flips``     bits flipped in the pipeline's files of state while it is down
``oracle``    an independent reader of the spool: compares publishers with spool, and spool with tables
``runs``      a run: load, kills at random moments, the count
``mistakes``  mistakes planted in the collector and the pipeline
``controls``  checks that each mistake is caught
``memory``    peak memory of the pipeline for large, many and dense messages
``trace``     no PUBACK before the fdatasync that covers it, read from a kernel trace
============  =================================================================================================
"""
