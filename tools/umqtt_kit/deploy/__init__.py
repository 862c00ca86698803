"""Bringing the firmware onto a board over the cable: what `umqtt deploy` does, without its options and its output.

filesets   which modules a board gets, by its settings
build      the files as they lie on the board, compiled for its .mpy version
plan       what has to be sent and removed, by SHA-256
apply      doing it, so that an interruption at any point leaves a board that can be deployed to again
telemetry  waiting for the first reading of the new start at the broker
"""
