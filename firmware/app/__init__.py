"""The firmware's application: readings of this board, published under one identity each.

    application  builds the parts from the settings and runs the loop
    settings     settings.json and secrets.json, validated with errors that name the key
    identity     device id, and the boot id raised in flash once a boot
    clock        uptime that does not wrap, and the time of day once it is known
    wifi         joins the networks of the settings, in order, with back-off
    sensors      readings of the machine itself
    telemetry    takes readings at an interval and publishes them as records
    commands     what a board does when told so on its command topic
    health       status topic, and the last traceback kept in flash

May be imported here: umqtt_robust and MicroPython's own modules, nothing else. Modules of one board (network,
machine) are imported by application.build() alone and passed in, so that the rest runs on a host unchanged.
"""

VERSION = "0.1.0"
