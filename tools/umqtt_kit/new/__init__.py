"""New sensors and boards from the templates beside this file: the work behind `umqtt new`, without its options.

sensor   NAME.py, a module for /sensors of a board
board    a folder like those under boards/
"""
