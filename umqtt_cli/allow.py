"""umqtt allow: lets the umqtt.toml of a folder set options."""

from __future__ import annotations

import json
from pathlib import Path

import click

from umqtt_cli.console import print_result
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.project import FILE, read_project


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--deny", is_flag=True, help="Take the permission back.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def allow(folder: Path, deny: bool, as_json: bool) -> int:
    """Let the umqtt.toml of a folder set options, until it changes.

    It shows what the file says. On a terminal, the first command that would use the file asks; everywhere else, as in
    continuous integration, allow it before.

    \b
    Example:
      umqtt allow ~/fleet
    """
    project = read_project(folder.absolute())
    if project.file is None:
        raise KitError(f"there is no {FILE} in {folder} or above it — name another folder", EXIT_USAGE)
    if deny:
        project.deny()
    else:
        project.allow()
    if as_json:
        click.echo(json.dumps({"file": str(project.file), "allowed": not deny, "values": project.values}))
        return 0
    print_result(f"{project.file} is {'no longer used' if deny else 'used from now on, until it changes'}. It says:")
    for line in project.lines():
        print_result(line)
    return 0
