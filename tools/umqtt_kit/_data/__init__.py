"""Firmware and board folders, placed here in a wheel; in a checkout they lie two folders up."""
