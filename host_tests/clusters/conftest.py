"""Tests on clusters of engines that others make: see engines.py."""
