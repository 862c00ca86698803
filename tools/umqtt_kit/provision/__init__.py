"""Tells boards who they are: the work behind `umqtt provision`, without its options and output.

values     what is to be on a board: what is there, changed as asked for
questions  asks a person at a terminal; passwords are not shown
table      reads values for many boards from a CSV file
write      puts the values onto a board
portal     gives a board a code for its own page, which needs no cable
"""
