"""Simulated devices: many in one process, each a complete client of the device library with an identity.

__main__ the process that the demo starts
device   one device: its readings, its records, its link
runner   the loop that serves all of them, and how they stop
status   the file that reports how they are

They are simulated because no board stands behind them. Their readings are real: they describe the process they run
in.
"""
