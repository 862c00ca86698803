"""umqtt broker: the paired broker in the foreground."""

from __future__ import annotations

import click

from umqtt_kit.processes import become
from umqtt_kit.requirements import require_free_port


@click.command()
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=1883,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Anything but loopback lets others in: there is no password yet.",
)
@click.option(
    "--store",
    default="umqtt-broker.db",
    show_default=True,
    metavar="PATH",
    help="SQLite file for sessions and unacknowledged messages; :memory: keeps nothing.",
)
def broker(port: int, host: str, store: str) -> int:
    """Run the MQTT broker until Ctrl-C.

    Prints `listening on HOST:PORT` once it accepts connections. What it acknowledged to a persistent session
    is on the disk.

    \b
    Example:
      umqtt broker -p 1883
    """
    require_free_port(host, port)
    return become("umqtt_broker", "-p", str(port), "--host", host, "--store", store)
