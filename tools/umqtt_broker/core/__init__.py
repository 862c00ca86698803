"""What all parts of a broker share: the context, clock, timers, turns and limits of queued messages."""
