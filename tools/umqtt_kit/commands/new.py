"""umqtt new: makes a sensor or a board of one's own from a template."""

from __future__ import annotations

import json
from pathlib import Path

import click

from umqtt_cli.console import print_result, say
from umqtt_cli.groups import CommandGroup

_FOLDER = click.Path(file_okay=False, path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=CommandGroup)
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
@click.option("--i2c", metavar="ADDRESS", help="It reads a chip at this address, like 0x44, instead of a pin.")
@_json
def sensor(name: str, folder: Path, i2c: str | None, as_json: bool) -> None:
    """Make a module for a sensor, which reads a pin until you write what yours does.

    With --i2c it reads an SHT31, which shows how a chip is asked that takes time to measure.

    \b
    Example:
      umqtt new sensor door
      umqtt new sensor climate --i2c 0x44
    """
    from umqtt_kit.new.sensor import make_sensor

    address = None if i2c is None else _address(i2c)
    file = make_sensor(name, folder, address)
    place = {"pin": 14} if address is None else {"scl": 5, "sda": 4}
    entry = json.dumps([{"module": name, **place}])
    if as_json:
        click.echo(json.dumps({"file": str(file), "sensors": json.loads(entry)}))
        return
    print_result(f"made {file}")
    say(f"Next: umqtt provision --set 'sensors={entry}', then: umqtt deploy --sensors {folder}")


def _address(text: str) -> int:
    """Return an I2C address. Raises click.UsageError for an invalid, a reserved or an ambiguous one."""
    if text.isdecimal():
        # Data sheets and i2cdetect mean 0x44 when they write 44.
        number = min(int(text), 0x77)
        raise click.UsageError(f"--i2c {text}: write 0x{text}, as in data sheets, or 0x{number:02x} for {number}")
    try:
        address = int(text, 0)
    except ValueError:
        address = 0
    if not 0x08 <= address <= 0x77:
        raise click.UsageError(f"--i2c {text}: must be an address from 0x08 to 0x77")
    return address


@new.command()
@click.argument("name")
@click.option(
    "--like",
    required=True,
    metavar="BOARD",
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
