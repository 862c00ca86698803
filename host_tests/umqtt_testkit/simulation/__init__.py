"""Everything that a deterministic simulation needs besides the programs in it: one process, no threads, no waiting.

    clock    virtual time, and an asyncio event loop for each simulated process
    network  links that are delayed, stalled, half-open and cut at any byte
    disk     files that lose what was not synced when the power is cut, and that can be full
    model    MQTT as a page: what each client is owed, and what it may get again

Randomness is an argument everywhere, so the same seed gives the same bytes.
"""
