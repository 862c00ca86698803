"""Telling boards who they are: what `umqtt provision` does, without its options and its output.

values     what is to be on a board: what is there, changed by what was asked for
questions  asking a person at a terminal; passwords are not shown
table      many boards from a CSV file
write      putting it onto a board
portal     a code for the board's own page, which needs no cable
"""
