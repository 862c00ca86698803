"""umqtt new: a sensor or a board of one's own, from a template."""

from __future__ import annotations

import json
from pathlib import Path

import click

from umqtt_kit.completion import complete_board
from umqtt_kit.console import print_result, say

_FOLDER = click.Path(file_okay=False, path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def new() -> None:
    """Make a sensor or a board of your own from a template.

    \b
    Example:
      umqtt new sensor door
      umqtt new board GREENHOUSE --like ESP32_GENERIC
    """


@new.command()
@click.argument("name")
@click.option("--folder", type=_FOLDER, default=Path("sensors"), show_default=True, help="Where the module goes.")
@_json
def sensor(name: str, folder: Path, as_json: bool) -> None:
    """Make a module for a sensor, which reads a pin until you write what yours does.

    \b
    Example:
      umqtt new sensor door
    """
    from umqtt_kit.new.sensor import make_sensor

    file = make_sensor(name, folder)
    entry = json.dumps([{"module": name, "pin": 14}])
    if as_json:
        click.echo(json.dumps({"file": str(file), "sensors": json.loads(entry)}))
        return
    print_result(f"made {file}")
    say(f"Next: umqtt provision --set 'sensors={entry}', then: umqtt deploy --sensors {folder}")


@new.command()
@click.argument("name")
@click.option(
    "--like",
    required=True,
    metavar="BOARD",
    shell_complete=complete_board,
    help="The board under boards/ that is most like it.",
)
@click.option("--folder", type=_FOLDER, default=Path("boards"), show_default=True, help="Where its folder goes.")
@_json
def board(name: str, like: str, folder: Path, as_json: bool) -> None:
    """Describe a board of your own: board.json, pins.py, manifest.py and README.md, to be corrected where it differs.

    The other commands find it with UMQTT_BOARDS=FOLDER, or in a checkout's own folder boards.

    \b
    Example:
      umqtt new board GREENHOUSE --like ESP32_GENERIC
    """
    from umqtt_kit.data import boards_folder
    from umqtt_kit.new.board import make_board

    made = make_board(name, like, folder)
    if as_json:
        click.echo(json.dumps({"folder": str(made), "like": like}))
        return
    print_result(f"made {made}")
    found = "" if folder.resolve() == boards_folder().resolve() else f"UMQTT_BOARDS={folder} "
    say(f"Next: correct {made}/board.json and pins.py, then: {found}umqtt deploy --board {name}")
