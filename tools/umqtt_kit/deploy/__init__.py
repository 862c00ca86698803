"""Brings the firmware onto a board over the cable: the work behind `umqtt deploy`, without its options and output.

filesets   which modules a board gets, by its settings
build      the files as they lie on the board, compiled for its .mpy version
plan       what has to be sent and removed, by SHA-256
apply      carries the plan out, so that an interruption at any point leaves a board that can be deployed to again
telemetry  waits until the board says that the broker has a reading
tracebacks tracebacks of boards, in the lines of the readable firmware
"""
