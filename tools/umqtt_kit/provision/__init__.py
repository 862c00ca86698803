"""Tells boards who they are: the work behind `umqtt provision`, without its options and output.

values     the wanted configuration of a board: its present one with the requested changes
sensors    checks the sensors of a board, and tries each one
questions  asks a person at a terminal; passwords are not shown
table      reads values for many boards from a CSV file
write      puts the values onto a board
portal     gives a board a code for its own page, which needs no cable
"""
