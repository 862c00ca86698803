"""umqtt broker: runs the paired broker in the foreground."""

from __future__ import annotations

import os
import sys

import click

from umqtt_cli.requirements import require_free_port

_PORT = 1883
_LAN_PORT = 8883
_HOST = "127.0.0.1"
_STORE = "umqtt-broker.db"


@click.command()
@click.option("--lan", is_flag=True, help="For boards on this network: on port 8883, with password and certificate.")
@click.option("-c", "--config", type=click.Path(), metavar="FILE", help="Configuration in mosquitto.conf's syntax.")
@click.option("--lenient", is_flag=True, help="Unsupported keys in FILE that restrict nothing are warnings.")
@click.option("--test-config", is_flag=True, help="Check FILE and everything it names, and end.")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), help=f"Port to listen on; 0 picks a free one.  [default: {_PORT}]"
)
@click.option(
    "--host", help=f"Address to listen on. Anything but loopback needs --allow-anonymous, or FILE.  [default: {_HOST}]"
)
@click.option(
    "--store",
    metavar="PATH",
    help="SQLite file for sessions and unacknowledged messages, or redis://HOST:PORT/DB, which several brokers share;"
    f" :memory: keeps nothing.  [default: {_STORE}]",
)
@click.option(
    "--http",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve metrics, the admin API and the live page on a port of 127.0.0.1, and print where the token is.",
)
@click.option("--allow-anonymous", is_flag=True, help="Let anyone in who can reach the address.")
@click.option("--accept-loss", is_flag=True, help="Open the store even if part of it is lost or damaged.")
def broker(
    lan: bool,
    config: str | None,
    lenient: bool,
    test_config: bool,
    port: int | None,
    host: str | None,
    store: str | None,
    http: int | None,
    allow_anonymous: bool,
    accept_loss: bool,
) -> None:
    """Run the MQTT broker until Ctrl-C.

    Prints `listening on HOST:PORT` once it accepts connections. What it acknowledged to a persistent session
    is on the disk. SIGHUP reads FILE, permissions and certificates again.

    --lan makes a user, a password and a certificate in the folder umqtt-lan, and says what boards need of these.
    Commands in this folder then use that broker.

    \b
    Example:
      umqtt broker -p 1883 --http 8080
      umqtt broker --lan
      umqtt broker -c mosquitto.conf --test-config
    """
    arguments: list[str] = []
    host = host and host.strip("[]")  # an IPv6 address, as in URLs
    if lan:
        if any((config, lenient, test_config, host, store, http, allow_anonymous, accept_loss)):
            raise click.UsageError("--lan goes with --port alone; for more, -c with its umqtt-lan/broker.conf")
        from umqtt_broker.cli.lan import prepare

        port = _LAN_PORT if port is None else port
        require_free_port("0.0.0.0", port)
        config, port = str(prepare(port)), None
    if config is None and not (lenient or test_config):
        host, port = host or _HOST, _PORT if port is None else port
        store = store or _STORE
        require_free_port(host, port)
    for option, value in (
        ("-c", config),
        ("-p", port),
        ("--host", host),
        ("--store", store),
        ("--http", http),
    ):
        if value is not None:
            arguments += [option, str(value)]
    for option, is_given in (
        ("--lenient", lenient),
        ("--test-config", test_config),
        ("--allow-anonymous", allow_anonymous),
        ("--accept-loss", accept_loss),
    ):
        if is_given:
            arguments.append(option)
    # The process becomes the broker: pid, streams and signals stay. -P: no file of this folder is taken for a module.
    os.execv(sys.executable, [sys.executable, "-P", "-u", "-m", "umqtt_broker", *arguments])
