"""WebSocket as a transport."""
