"""umqtt console: one page for the whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_ingest.address import Address
from spark_ingest.location import PathOption, TablesOption
from umqtt_cli.requirements import require_module
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access

_FILE = PathOption(exists=True, dir_okay=False)


@click.command()
@click.option("--tables", type=TablesOption(), help="Folder or URL of the tables, as given to umqtt ingest.")
@click.option("--spool", type=PathOption(file_okay=False), help="Folder of the collectors' spools, if it is here.")
@click.option("--broker-http", metavar="URL", help="The paired broker's API, such as http://127.0.0.1:8088.")
@click.option("--broker-token", type=_FILE, help="The file of its token.")
@click.option("--config", type=_FILE, help="The ingest.toml, to show what its rules make of messages.")
@click.option("--audit", type=PathOption(dir_okay=False), default=Path("console-audit.jsonl"), show_default=True,
              help="Who did what, and when: a line of JSON each.")  # fmt: skip
@click.option("--listen", type=Address(), default="127.0.0.1:8090", show_default=True, metavar="HOST:PORT",
              help="Where the page is. Others than this computer need --users and TLS.")  # fmt: skip
@click.option("--users", type=PathOption(dir_okay=False), help="Users, their roles and hashes of their passwords.")
@click.option("--add-user", metavar="NAME", help="Only add a user to --users, or give a new password.")
@click.option("--role", type=click.Choice(["read", "operate", "admin"]), default="read", show_default=True,
              help="Of --add-user.")  # fmt: skip
@click.option("--web-cert", type=_FILE, help="TLS with this certificate: umqtt certs broker.")
@click.option("--web-key", type=_FILE, help="Its private key.")
@broker_options
def console(users: Path | None, add_user: str | None, role: str, access: Access, **options: Any) -> int:
    """Serve one page for the whole fleet: devices, data path, topics, commands.

    It reads the tables, without Spark, and the broker; it is made for a browser on this computer. For others it needs
    users with passwords, and TLS.

    \b
    Example:
      umqtt console --tables tables --broker mqtt://192.168.1.2
      umqtt console --users users --add-user ann --role operate
    """
    for name in ("aiohttp", "argon2", "deltalake", "duckdb"):
        require_module(name)
    from umqtt_kit.console_page import Options, add, serve

    if add_user is not None:
        return add(users, add_user, role)
    given = {name: value for name, value in click.get_current_context().params.items() if value}
    return serve(Options(users=users, access=access, given=given, **options))
