"""umqtt deploy: puts the firmware onto a board over the cable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import print_result, progress_bar, results, say
from umqtt_cli.errors import EXIT_DEVICE, EXIT_OK, EXIT_SENSORS, KitError
from umqtt_cli.numbers import Finite
from umqtt_kit.device.choose import choose, device_option, interrupt_option

if TYPE_CHECKING:
    from umqtt_kit.deploy.plan import Plan, Record
    from umqtt_kit.device import Configuration, Info, Port

_FIRST_READING_S = 60.0


@click.command()
@device_option
@click.option(
    "--board",
    "board_name",
    metavar="NAME",
    help="Folder under boards/. [default: as before, or guessed]",
)
@click.option("--sensors", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER",
              help="Your own sensors: its *.py go to /sensors. [default: those there stay]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be sent and removed, and change nothing.")
@interrupt_option
@click.option("--replace", is_flag=True, help="Overwrite and remove files that no deployment put there.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the broker has a reading.")
@click.option("--timeout", type=Finite(min=1), default=_FIRST_READING_S, show_default=True,
              help="How long to wait for it, in seconds.")  # fmt: skip
@click.option("--logs", "follow", is_flag=True, help="Then show what the board prints, like umqtt logs, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def deploy(
    device: str, board_name: str | None, sensors: Path | None, dry_run: bool, interrupt: bool, replace: bool,
    no_wait: bool, timeout: float, follow: bool, as_json: bool,
) -> int:  # fmt: skip
    """Put the firmware onto a board, and wait until the broker has a reading of it.

    Everything is compiled for the board; only what differs (by SHA-256, computed on the board) is sent, and what
    earlier deployments put there and is gone now is removed. Settings, secrets and waiting readings stay; versions
    that came over the air go. If it is interrupted, run it again. Exit code 7: sensors failed in the first reading.

    \b
    Example:
      umqtt deploy --dry-run
      umqtt deploy --device ttyACM0 --board RPI_PICO_W
      umqtt deploy --sensors sensors
      umqtt deploy --logs
    """
    from umqtt_kit.deploy.apply import apply
    from umqtt_kit.deploy.build import build, check_compatible
    from umqtt_kit.deploy.filesets import optional_modules
    from umqtt_kit.deploy.plan import make_plan, read_record
    from umqtt_kit.deploy.sensors import with_sensors
    from umqtt_kit.deploy.telemetry import first_reading
    from umqtt_kit.device import Board, Manner, look, read_configuration
    from umqtt_kit.device.guess import check_network

    if follow and (dry_run or as_json):
        raise click.UsageError("--logs goes neither with --dry-run nor with --json")
    port = choose(device)
    reading = None
    exit_code = EXIT_OK
    with look(port, interrupt=interrupt) if dry_run else Board(port, manner=Manner.STOP) as board:
        info = board.info()
        check_compatible(info)
        record = read_record(board)
        configuration = read_configuration(board)
        _check_settings(configuration)
        check_network(info, port, configuration.settings or {})
        name = _board_name(board_name, record, port, info)
        with board.fed():
            built = build(name, optional_modules(configuration.settings))
            whole = with_sensors(built, sensors)
        plan = make_plan(board, record, whole, replace=replace or dry_run, keep_sensors=sensors is None)
        if dry_run:
            _show_plan(plan, as_json)
            return 0
        with progress_bar("sending", plan.send_bytes, wanted=bool(plan.changes)) as add:
            apply(board, plan, lambda path, size: add(advance=size, description=path))
        if not as_json:
            results().print(_summary(plan))
        if not no_wait and configuration.settings is not None:
            board.reset()
            reading = first_reading(board, timeout, say)
            say(f"{reading['id']}: the broker has its readings: {json.dumps(reading['m'])}")
            if failures := reading["m"].get("sensor_failures"):
                exit_code = EXIT_SENSORS
                say(f"{reading['id']}: {failures} sensors failed in it — see which, and why: umqtt doctor")
    # If no reading was waited for, leaving the context has started the board.
    if configuration.settings is None:
        say("The board has no settings yet: umqtt provision")
    if as_json:
        click.echo(json.dumps({**plan.as_dict(), "changed": plan.changes, "reading": reading}))
    if follow:
        from umqtt_kit.commands.logs import logs

        click.get_current_context().invoke(logs, devices=(port.path,))
    return exit_code


def _check_settings(configuration: Configuration) -> None:
    # Raised before anything is sent, because the firmware would stop at it.
    if configuration.settings is not None:
        try:
            configuration.checked()
        except ValueError as error:
            raise KitError(f"the board's {error} — correct it: umqtt provision", EXIT_DEVICE) from error


def _board_name(given: str | None, record: Record, port: Port, info: Info) -> str:
    from umqtt_kit.device.guess import check_board, guess_board
    from umqtt_kit.device.ports import board_description

    name = given or record.board or guess_board(info, port)
    board_description(name)
    check_board(name, info)
    return name


def _show_plan(plan: Plan, as_json: bool) -> None:
    values: dict[str, Any] = plan.as_dict()
    if as_json:
        click.echo(json.dumps({**values, "changed": False, "reading": None}))
        return
    for path, size in values["send"].items():
        print_result(f"send    {path}  {size:,} bytes")
    for path in values["remove"]:
        print_result(f"remove  {path}")
    print_result(_summary(plan))


def _summary(plan: Plan) -> str:
    values: dict[str, Any] = plan.as_dict()
    return (
        f"{plan.build.version} for {plan.build.board}: {len(plan.send)} files to send ({plan.send_bytes:,} bytes), "
        f"{len(values['remove'])} to remove, {values['unchanged']} unchanged"
    )
