"""Sockets, TLS and WebSocket."""
