"""The command `umqtt`: everything a user runs from a shell.

    __main__   the group of commands; turns errors into one line and an exit code
    commands   one file per command; each is thin and calls the modules that do the work
    demo       the whole chain on this machine, from virtual boards to counted rows
    fleet      simulated devices: the device library under CPython, many in one process
    deploy, device, doctor, flash, logs, new, ota, provision   the work of the commands for boards
    console, data, errors, ground_truth, processes, requirements   code that several commands share

This package may import every other package of the project; none of them imports it.
"""
