"""Routes messages to the sessions that subscribe to them."""
