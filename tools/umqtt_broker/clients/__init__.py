"""Connections and what they say."""
