"""A broker for the boards on this computer's network: its password, its certificate, and what boards need of these.

    umqtt-lan/board.json      for `umqtt provision --from`: address, user name, password and certificate authority
    umqtt-lan/certs           the authority, and the broker's certificate
    umqtt-lan/password(s)     of the one user, who may do everything
    umqtt.toml                the same for commands in this folder; written if there is none

This is for a bench: in a fleet, each board has credentials of its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
from pathlib import Path

from umqtt_cli.console import say
from umqtt_cli.durable import replace_file
from umqtt_cli.errors import EXIT_USAGE, KitError

_FOLDER = "umqtt-lan"
_USER = "bench"
_SECRET, _PUBLIC = 0o600, 0o644
# RFC 5737: for documentation. Nothing is sent there; the system only says from which address it would be.
_ELSEWHERE = ("192.0.2.1", 9)


def own_address() -> str | None:
    """Return the address under which other computers on the network reach this one; None if it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    # Without a way to the internet.
    with contextlib.suppress(OSError):
        found = [str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
        return next((address for address in found if not is_loopback(address)), None)
    return None


def is_loopback(host: str) -> bool:
    """Whether a host name or address means the computer, or the board, that uses it."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return host.rstrip(".").lower() in ("localhost", "ip6-localhost")


def prepare(port: int) -> Path:
    """Make what is missing in the current folder; return the broker's configuration file. Raises KitError."""
    try:
        return _prepare(port)
    except OSError as error:
        raise KitError(f"{error.filename}: {error.strerror} — start it in a folder of yours", EXIT_USAGE) from error


def _prepare(port: int) -> Path:
    from umqtt_broker.access.passwords import ITERATIONS_RANDOM, PasswordFile, PasswordHash, generate_password
    from umqtt_broker.cli.authority import Authority
    from umqtt_cli.project import FILE, find_project, read_project

    folder = Path.cwd() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / "passwords").exists():
        password = generate_password()
        replace_file(folder / "password", password.encode() + b"\n", mode=_SECRET)
        passwords = PasswordFile(folder / "passwords")
        passwords.set(_USER.encode(), PasswordHash.make(password.encode(), ITERATIONS_RANDOM))
        passwords.write()
    password = (folder / "password").read_text().strip()
    authority = Authority(folder / "certs")
    if not (authority.folder / "ca.key").exists():
        authority.create("umqtt broker --lan")
    address = own_address()
    hosts = ["localhost", "127.0.0.1", *([address] if address else [])]
    known = [issued for issued, revoked in authority.newest() if not revoked and issued.days_left() > 0]
    if not any(issued.hosts == hosts for issued in known):
        authority.issue_broker(hosts, force=True)
    board = {
        "settings": {"brokers": [f"mqtts://{address or '127.0.0.1'}:{port}"]},
        "mqtt": {"username": _USER, "password": password},
        "tls": {"ca": "certs/ca.pem"},
    }
    replace_file(folder / "board.json", json.dumps(board, indent=2).encode() + b"\n", mode=_SECRET)
    configuration = folder / "broker.conf"
    made = folder / "certs" / "broker"
    lines = (
        *("persistence true", f"persistence_location {folder}", f"listener {port}"),
        *(f"certfile {made}/cert.pem", f"keyfile {made}/key.pem", f"password_file {folder}/passwords"),
    )
    replace_file(configuration, "\n".join((*lines, "")).encode(), mode=_PUBLIC)
    for_commands = (
        f'broker = "mqtts://localhost:{port}"\nusername = "{_USER}"\n'
        f'password_file = "{_FOLDER}/password"\nca = "{_FOLDER}/certs/ca.pem"\n'
    )
    file = Path.cwd() / FILE
    if find_project(Path.cwd()) is None:
        replace_file(file, for_commands.encode(), mode=_PUBLIC)
        read_project(Path.cwd()).allow()
    elif not file.exists() or not file.read_text().startswith(for_commands):
        say(f"{FILE} is left as it is; for commands that use this broker, write into it:\n{for_commands.rstrip()}")
    if address is None:
        say("this computer has no network: only virtual boards reach the broker")
    say(f"what a board needs to reach it: umqtt provision --from {_FOLDER}/board.json")
    return configuration
