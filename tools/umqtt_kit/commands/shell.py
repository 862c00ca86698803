"""umqtt shell: opens the prompt of a board."""

from __future__ import annotations

import subprocess
import sys

import click

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_NO_DEVICE, EXIT_USAGE, KitError
from umqtt_cli.requirements import require_module
from umqtt_kit.device.choose import choose, device_option


@click.command()
@device_option
def shell(device: str) -> int:
    """Talk to a board's MicroPython at its prompt, through mpremote.

    The board's program goes on until Ctrl-C stops it. Leave with Ctrl-], after Ctrl-D where the program is to run
    again. Programs use mpremote itself: mpremote connect PORT exec CODE.

    \b
    Example:
      umqtt shell --device ttyACM0
    """
    from umqtt_kit.device import open_serial

    port = choose(device)
    if not sys.stdin.isatty():
        raise KitError(f"there is no terminal here — for programs: mpremote connect {port.path} exec CODE", EXIT_USAGE)
    require_module("mpremote")
    # This tells who has the port open, or that it may not be opened; mpremote does not.
    open_serial(port.path).close()
    say("Ctrl-C stops the board's program, Ctrl-D starts it again, Ctrl-] leaves.")
    # mpremote puts the terminal into raw mode, so Ctrl-C goes to the board like every key.
    code = subprocess.call([sys.executable, "-P", "-m", "mpremote", "connect", port.path, "repl"])
    if code:
        raise KitError(f"{port.name}: the board is gone — plug it in again, then: umqtt devices", EXIT_NO_DEVICE)
    return 0
