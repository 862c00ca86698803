"""Sessions: the state that the broker keeps for a client, in memory and in the store."""
