"""umqtt store: backs up, restores, checks and shows a broker's store."""

from __future__ import annotations

import json

import click

from umqtt_cli.console import print_result
from umqtt_cli.errors import EXIT_LOST, EXIT_USAGE, KitError
from umqtt_cli.groups import CommandGroup

_store_option = click.option(
    "--store",
    "store_path",
    default="umqtt-broker.db",
    show_default=True,
    metavar="PATH",
    help="The broker's store.",
)


@click.group(cls=CommandGroup)
def store() -> None:
    """Back up, restore, check or show a broker's store.

    `backup`, `check` and `info` may run beside the broker.

    \b
    Example:
      umqtt store backup nightly.db
    """


@store.command()
@click.argument("to", metavar="TO")
@_store_option
def backup(to: str, store_path: str) -> None:
    """Copy the store to the file TO, also while the broker runs.

    The copy holds everything acknowledged before the command began. It is checked before it gets its name; an
    older backup of that name is replaced.

    \b
    Example:
      umqtt store backup nightly.db --store /var/lib/umqtt/broker.db
    """
    from umqtt_broker.errors import StoreError
    from umqtt_broker.store import backup as backups

    try:
        found = backups.backup(store_path, to)
    except StoreError as error:
        raise KitError(str(error), EXIT_USAGE) from error
    print_result(f"backed up {store_path} to {to}: {found.sessions} sessions, {found.queued} messages waiting")


@store.command()
@click.argument("source", metavar="FROM")
@_store_option
def restore(source: str, store_path: str) -> None:
    """Replace the store with the backup FROM. The broker must be stopped; the old store is kept aside.

    \b
    Example:
      umqtt store restore nightly.db --store /var/lib/umqtt/broker.db
    """
    from umqtt_broker.errors import StoreError
    from umqtt_broker.store import backup as backups

    try:
        kept = backups.restore(source, store_path)
    except StoreError as error:
        raise KitError(str(error), EXIT_USAGE) from error
    print_result(f"restored {store_path} from {source}" + (f"; the old store is {kept}" if kept else ""))


@store.command("check")
@_store_option
def check_store(store_path: str) -> None:
    """Look for damage: lost commits, pages, tables, messages that differ from what was stored. Changes nothing.

    The broker may run. Exit code 1 and a line for each finding if anything is wrong.

    \b
    Example:
      umqtt store check --store /var/lib/umqtt/broker.db
    """
    from umqtt_broker.errors import StoreError
    from umqtt_broker.store.check import check

    try:
        problems = check(store_path)
    except StoreError as error:
        raise KitError(str(error), EXIT_USAGE) from error
    if problems:
        for problem in problems:
            print_result(problem)
        raise KitError(f"{store_path} is damaged — restore a backup, or start the broker with --accept-loss", EXIT_LOST)
    print_result(f"{store_path} is whole")


@store.command("info")
@_store_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(store_path: str, as_json: bool) -> None:
    """Show what the store holds, also while the broker runs.

    \b
    Example:
      umqtt store info --json
    """
    from umqtt_broker.errors import StoreError
    from umqtt_broker.store import backup as backups

    try:
        found = backups.info(store_path)._asdict()
    except StoreError as error:
        raise KitError(str(error), EXIT_USAGE) from error
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        print_result(f"{name.replace('_', ' '):14}{value:>14,}")
