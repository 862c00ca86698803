"""Finding out why a board does not do what it should: what `umqtt doctor` does, without its output.

checks    each check, in the order in which a reading passes: port, MicroPython, files, settings, Wi-Fi, broker
hardware  what only a real board can show
scripts   the programs among them that run on the board
"""
