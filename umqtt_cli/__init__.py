"""The command `umqtt`, and what its commands share. It imports nothing of the project.

    entry, __main__   finds the command among the entry points; turns errors into one line and an exit code
    allow, project    umqtt.toml: options that the commands of one folder share
    errors, console, escape, groups    how a command fails, what it prints, and its help
    numbers, properties, strict_json, toml_file    values from outside
    durable, requirements, stop     files, what a command needs, signals
    clouds, reason_codes            what brokers need, and what they answer
"""
