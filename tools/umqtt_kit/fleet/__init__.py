"""Simulated devices: many in one process, each a whole client of the device library with an identity.

    device   one device: its readings, its records, its link
    runner   the loop that serves all of them, and how they stop
    status   the file that says how they are

They are simulated in that no board stands behind them. Their readings are true: of the process they run in.
"""
