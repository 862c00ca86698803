"""From a message to the sessions that are to have it."""
