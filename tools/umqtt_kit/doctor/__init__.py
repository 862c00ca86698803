"""Finds out why a board does not do what it should: the work behind `umqtt doctor`, without its output.

checks      each check, in the order in which a reading passes: port, MicroPython, files, settings, Wi-Fi, broker
hardware    what only a real board can show
round_trip  an update over the air, and back to the version before
scripts     the programs of the checks that run on the board
"""
