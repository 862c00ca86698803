"""umqtt board: runs a virtual board in the foreground."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_result
from umqtt_cli.errors import EXIT_DEVICE, EXIT_MISSING, EXIT_USAGE, KitError

if TYPE_CHECKING:
    from umqtt_testkit.board import VirtualBoard

_LOOK_S = 0.2
_BLOCK_SIZE = 4096
# In 32K the stand-ins for the hardware do not load, in 40K they do.
_LEAST_HEAP = 48 * 1024


@click.command()
@click.argument("flash", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="What --device calls it. [default: FLASH without its ending]")
@click.option("--board", "board_name", default="UNIX", show_default=True, metavar="NAME",
              help="The board that it plays: a folder under boards/.")  # fmt: skip
@click.option("--heap", default="256K", show_default=True, metavar="SIZE",
              help="96K plays a small board, and is what the firmware needs.")  # fmt: skip
@click.option("--device", "connected", multiple=True, metavar="KIND@PLACE[:QUANTITY=VALUE,…]",
              help="A sensor or signal that is connected to it; may be repeated.")  # fmt: skip
@click.option("--link", type=click.Path(path_type=Path), help="A link to its port, for other tools.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="File for all its output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it runs.")
def board(
    flash: Path,
    name: str | None,
    board_name: str,
    heap: str,
    connected: tuple[str, ...],
    link: Path | None,
    log: Path | None,
    as_json: bool,
) -> None:
    """Run a virtual board until Ctrl-C.

    It is real MicroPython, with its flash in the file FLASH and a serial port.

    FLASH is made when it is not there, and keeps what the board had written. Every command that takes --device finds
    the board like one that is plugged in. Ctrl-C is a power cut, which loses nothing that was written.

    \b
    KIND, its PLACE, and its quantities: a number, or LOW..HIGH to go up and down once a minute
      bme280    I2C address   temp_c, humidity_pct, pressure_hpa
      sht31     I2C address   temp_c, humidity_pct
      dht22     pin           temp_c, humidity_pct
      ds18b20   pin           temp_c (several share a pin)
      adc       pin           v
      pin       pin           level

    \b
    Example:
      umqtt board bench.img
      umqtt board bench.img --device sht31@0x44:temp_c=21..23 --device adc@34:v=1.8
      umqtt board pico.img --board RPI_PICO_W --heap 192K
    """
    name = name or flash.stem
    if link is not None and link.exists() and not link.is_symlink():
        raise KitError(f"{link} is there already, and no link — choose another name for it", EXIT_USAGE)
    if link is not None and not link.parent.is_dir():
        raise KitError(f"{link}: there is no folder {link.parent} — make it, or choose another name", EXIT_USAGE)
    from umqtt_testkit.board import BoardError, VirtualBoard
    from umqtt_testkit.devices import Devices
    from umqtt_testkit.interpreter import MicroPythonMissing, heap_bytes
    from umqtt_testkit.registry import RegistryError, registered

    from umqtt_cli.stop import Stop

    try:
        enough = heap_bytes(heap) >= _LEAST_HEAP
    except ValueError:
        enough = False
    if not enough:
        raise click.UsageError(f"--heap {heap}: must be like 256K or 1M, and at least {_LEAST_HEAP // 1024}K")
    try:
        devices = Devices(connected)
    except ValueError as error:
        raise click.UsageError(f"--device {error}") from error
    try:
        with (
            Stop() as stop,
            VirtualBoard(flash, board=board_name, heap=heap, link=link, log=log) as virtual,
            registered(name, virtual.port, board=board_name, image=str(virtual.image)),
        ):
            _check_size(virtual)
            virtual.hooks(**devices.hooks(at_s=0))
            virtual.start()
            started = time.monotonic()
            if as_json:
                values = {"name": name, "port": virtual.port, "board": board_name, "image": str(virtual.image)}
                click.echo(json.dumps(values))
            else:
                print_result(f"{name} runs at {link or virtual.port}")
            while not stop:
                if not virtual.running:
                    said = virtual.output.strip().rpartition("\n")[2]
                    raise KitError(f"{name} does not run any more — its last line: {said!r}", EXIT_DEVICE)
                time.sleep(_LOOK_S)
                if devices.moving:
                    virtual.hooks(**devices.hooks(time.monotonic() - started))
    except MicroPythonMissing as missing:
        raise KitError(str(missing), EXIT_MISSING) from missing
    except RegistryError as error:
        raise KitError(f"{str(error).replace(' - ', ' — ')}: --name", EXIT_USAGE) from error
    except BoardError as error:
        raise KitError(str(error).replace(" - ", " — "), EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"{flash}: {error.strerror} — give a file that can be written", EXIT_USAGE) from error


def _check_size(virtual: VirtualBoard) -> None:
    # A board would format a file of any other size.
    expected, found = _BLOCK_SIZE * virtual.geometry.block_count, virtual.image.stat().st_size
    if found != expected:
        raise KitError(
            f"{virtual.image} is no flash image of this board: {found:,} bytes, not {expected:,} — give another file",
            EXIT_USAGE,
        )
