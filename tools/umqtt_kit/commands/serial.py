"""umqtt serial: connects a board without a network to a broker."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import click

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.device.line import open_serial
from umqtt_kit.mqtt import check_address

_TIMEOUT_S = 10.0
_AGAIN_S = 1.0


@click.command()
@click.argument("port", type=click.Path(path_type=Path))
@click.option("--broker", envvar="UMQTT_BROKER", default="mqtt://127.0.0.1:1883", show_default=True, metavar="URL",
              help="mqtt://HOST:PORT or mqtts://HOST:PORT.")  # fmt: skip
@click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Authority that signed the broker's certificate. [default: those trusted here]")  # fmt: skip
@click.option("--baud", type=click.IntRange(1200, 4_000_000), default=115200, show_default=True, help="Speed of PORT.")
def serial(port: Path, broker: str, ca: Path | None, baud: int) -> int:
    """Connect a board on a serial line to a broker.

    PORT is that line. The command is for a board without a network, whose program uses umqtt_robust.serial. Bytes that
    the line loses or garbles are sent again. Ctrl-C ends the command. User name and password are the board's own. The
    line itself is not encrypted.

    \b
    Example:
      umqtt serial /dev/ttyAMA0 --broker mqtts://broker.example --ca ca.pem
    """
    from umqtt_cli.stop import Stop
    from umqtt_kit.serial_gateway import Gateway

    scheme, host, number = check_address(broker)
    try:
        tls = ssl.create_default_context(cafile=str(ca) if ca else None) if scheme == "mqtts" else None
    except (ssl.SSLError, OSError) as error:
        raise KitError(f"--ca {ca}: {error.strerror or error} — give a file of PEM certificates", EXIT_USAGE) from error

    def connect() -> socket.socket:
        link = socket.create_connection((host, number), _TIMEOUT_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.wrap_socket(link, server_hostname=host) if tls else link

    # Twice the time that the longest frame takes, at 10 bits per byte.
    resend_ms = max(300, 2 * 250 * 10 * 1000 // baud)
    with Stop() as stop:
        is_first = True
        while not stop:
            try:
                with open_serial(str(port), baudrate=baud, timeout_s=0) as line:
                    line.write_timeout = 0
                    gateway = Gateway(line, connect, lambda text: say(f"{port}: {text}"), resend_ms)
                    say(f"{port}: {baud} baud, waiting for a board; broker {broker}")
                    is_first = False
                    try:
                        while not stop:
                            gateway.step()
                    finally:
                        gateway.close()
            except KitError:
                # A USB adapter that was pulled out may come back.
                if is_first:
                    raise
                time.sleep(_AGAIN_S)
            except OSError:
                say(f"{port} is gone — plug it in again; this goes on when it is there")
                time.sleep(_AGAIN_S)
    return 0
