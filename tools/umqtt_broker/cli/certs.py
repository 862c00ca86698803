"""umqtt certs: manages a private certificate authority for a broker and its boards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import print_table, say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.groups import CommandGroup

if TYPE_CHECKING:
    from umqtt_broker.cli.authority import Authority

_dir = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("certs"),
    show_default=True,
    help="The authority's folder.",
)
_force = click.option("--force", is_flag=True, help="Replace what exists.")


def _days(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--days", type=click.IntRange(1, 36500), help=f"Days until it expires; default: {default}.")


@click.group(cls=CommandGroup)
def certs() -> None:
    """Make and revoke the certificates of a broker and its boards.

    Everything is kept in one folder. Its file ca.key can make boards: keep the folder off the broker's machine.

    \b
    Example:
      umqtt certs ca
      umqtt certs broker broker.local 192.0.2.10
      umqtt certs device pump-7
      umqtt certs revoke pump-7
    """


@certs.command()
@_dir
@_force
@_days("20 years")
@click.option("--name", default="umqtt private CA", show_default=True, help="Common name of the authority.")
def ca(folder: Path, force: bool, days: int | None, name: str) -> None:
    """Make the authority: ca.pem for boards to trust, crl.pem for the broker to read.

    \b
    Example:
      umqtt certs ca
    """
    _authority(folder).create(name, **_given(days), force=force)
    say(f"made {folder}/ca.pem — keep {folder}/ca.key secret; next: umqtt certs broker HOST")


@certs.command()
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@_dir
@_force
@_days("825")
def broker(hosts: tuple[str, ...], folder: Path, force: bool, days: int | None) -> None:
    """Make the broker's certificate, for every name and address that boards reach it by.

    \b
    Example:
      umqtt certs broker broker.local 192.0.2.10
    """
    _authority(folder).issue_broker(hosts, **_given(days), force=force)
    say(f"made {folder}/broker: certfile cert.pem, keyfile key.pem; beside them cafile ../ca.pem, crlfile ../crl.pem")


@certs.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_dir
@_force
@_days("10 years")
def device(names: tuple[str, ...], folder: Path, force: bool, days: int | None) -> None:
    """Make the certificates of devices, each with its key, as PEM and DER.

    NAME is the user name at a broker with use_identity_as_username.

    \b
    Example:
      umqtt certs device pump-7
    """
    authority = _authority(folder)
    for name in names:
        authority.issue_device(name, **_given(days), force=force)
        say(f"made {folder}/devices/{name}: cert.der, key.der and ca.der go onto the board")


@certs.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_dir
def revoke(names: tuple[str, ...], folder: Path) -> None:
    """Revoke every certificate of devices, and write the new crl.pem.

    \b
    Example:
      umqtt certs revoke pump-7
    """
    authority = _authority(folder)
    for name in names:
        count = authority.revoke(name)
        say(f"revoked {count} certificate{'' if count == 1 else 's'} of {name}")
    say(f"give the broker {folder}/crl.pem and send it SIGHUP")


@certs.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@_dir
@_days("as when first made")
@click.option("--within", type=click.IntRange(0), metavar="DAYS", help="Renew all that expire within DAYS.")
def renew(names: tuple[str, ...], folder: Path, days: int | None, within: int | None) -> None:
    """Make new keys and certificates for devices, or for `broker`. The old ones stay valid until they expire.

    \b
    Example:
      umqtt certs renew --within 30
    """
    authority = _authority(folder)
    due = list(names)
    if within is not None:
        due += [
            issued.name
            for issued, revoked in authority.newest()
            if not revoked and issued.days_left() <= within and issued.name not in names
        ]
    elif not names:
        raise click.UsageError("give the names, or --within DAYS")
    for name in due:
        issued = authority.renew(name, days)
        say(f"renewed {name}: {issued.days_left()} days")
    if not due:
        say("nothing expires that soon")


@certs.command("ls")
@_dir
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a certificate.")
def show(folder: Path, as_json: bool) -> None:
    """List the certificates in use, first the one that expires first.

    \b
    Example:
      umqtt certs ls --json
    """
    listed = _authority(folder).newest()
    if as_json:
        for issued, revoked in listed:
            answer = {
                "name": issued.name,
                "kind": issued.kind,
                "hosts": issued.hosts,
                "serial": issued.serial,
                "expires": issued.expires,
                "days_left": issued.days_left(),
                "revoked": revoked,
            }
            click.echo(json.dumps(answer))
        return
    rows = []
    for issued, revoked in listed:
        state = "revoked" if revoked else "expired" if issued.days_left() < 0 else "valid"
        kind = f"{issued.kind} {' '.join(issued.hosts)}".strip()
        rows.append((issued.name, kind, issued.expires[:10], str(issued.days_left()), state))
    print_table(("name", "kind", "expires", "days left", "state"), rows, numbers=("days left",))


def _given(days: int | None) -> dict[str, int]:
    return {} if days is None else {"days": days}


def _authority(folder: Path) -> Authority:
    from umqtt_broker.cli.authority import Authority

    if folder.exists() and not folder.is_dir():
        raise KitError(f"{folder} is not a folder — choose another with --dir", EXIT_USAGE)
    return Authority(folder)
