"""Links to other brokers."""
