"""The commands of `umqtt` for boards, and those that need every part of the project:

    commands   one file per command; each is thin and calls the modules that do the work
    demo       the whole chain on this machine, from virtual boards to counted rows
    prove      the same, while everything breaks
    fleet      simulated devices: the device library under CPython, many in one process
    deploy, device, doctor, flash, logs, new, ota, provision   the work of the commands for boards
    mqtt, links   brokers that a command talks to
    data, ground_truth, processes   code that several commands share

This package may import every other package of the project; none of them imports it.
"""
