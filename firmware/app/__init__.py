"""The firmware's application: readings of this board, published under one identity each.

    start        makes the parts from the settings, by assembly and assembly_parts, and runs the application
    application  the loop
    settings     settings.json and secrets.json, validated with errors that name the key
    identity     device id, and the boot id raised in flash once a boot
    clock        uptime that does not wrap, and the time of day once it is known
    wifi         joins the networks of the settings, in order, with back-off
    sensors      readings of the machine itself
    telemetry    takes readings at an interval and publishes them as records
    board        the parts, as the commands see them
    command_door loads commands when one comes: kept in the ledger, carried out by actions and act_*, answered
    health       watchdog and confirmation of a boot; status, crash and restart beside it
    sleep        deep sleep between readings, where the settings ask for it
    update       a new version over the air
    attend       answers a tool on the cable, while the application runs

Beside the package, and never part of an update: startup.py chooses the version that runs, postmortem.py keeps what
ended it, portal asks a phone for settings.

May be imported here: umqtt_robust, startup, postmortem and MicroPython's own modules, nothing else. Modules of one
board (network, machine) are imported by assembly and assembly_parts alone and passed in, so that the rest runs on a
host unchanged.
"""

VERSION = "0.2.0"
