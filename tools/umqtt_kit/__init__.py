"""The command `umqtt`: everything a user runs from a shell.

    __main__   the group of commands, and how errors become one line and an exit code
    commands   one file a command; thin, the work is below
    demo       the whole chain on this machine, from virtual boards to counted rows
    fleet      simulated devices: the device library under CPython, many in one process
    console, data, errors, processes, requirements, witness   what several commands share

May import every other package of the project; nothing of the project imports it.
"""
