"""Tests on clusters of other makers' engines: see engines.py."""
