"""The firmware's application: takes readings of this board and publishes each under its own identity.

    start        has the parts built from the settings (build, build_*), and runs the application
    application  the main loop
    settings     settings.json and secrets.json, validated with errors that name the key
    identity     device id, and the boot id, whose count in flash grows with every boot
    clock        uptime that does not wrap, and the time of day once it is known
    wifi         joins the networks of the settings, in order, with back-off
    sensors      measurements by the sensors in the settings, and of the board itself
    telemetry    takes readings at an interval and publishes them as records
    board        the parts of the running application, as the commands see them
    command_door loads commands when one arrives: kept in the ledger, carried out by actions and act_*, answered
    health       feeds the watchdog and confirms a boot; related: status, crash and restart
    sleep        deep sleep between readings, if the settings ask for it
    update       installs a new version over the air
    attend       serves a tool on the cable while the application runs

Beside the package, and never part of an update: startup.py and boot_choice.py choose the version to run,
postmortem.py saves the traceback that ended it, portal takes settings from a phone.

Modules here may import umqtt_robust, startup, boot_choice, postmortem and MicroPython's own modules, nothing else.
Hardware modules (network, machine) are imported by the build_* modules and passed in, or only inside the function or
sensor that needs them, so that the rest runs on a host unchanged.
"""

VERSION = "0.2.0"
