"""Which readings are new, and when they were taken.

============  ==================================================================================================
``dedup``     the set of readings seen, as the highest seq and the open gaps per boot
``progress``  that set in immutable files per micro-batch
``clock``     when a reading was taken, even if the device's clock is wrong
``silver``    rows of silver; readings that silver already has become duplicates or conflicts
============  ==================================================================================================
"""
