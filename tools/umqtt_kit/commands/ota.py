"""umqtt ota: sends a new version to a device over the air."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spark_ingest.location import TablesOption
from umqtt_cli.console import live_display, print_result, progress_bar, results, say, table
from umqtt_cli.numbers import Finite
from umqtt_kit.mqtt import broker_options_if

if TYPE_CHECKING:
    from rich.table import Table

    from spark_ingest.location import Location
    from umqtt_kit.mqtt import Access
    from umqtt_kit.ota.order import Wanted
    from umqtt_kit.ota.rollout import Rollout, Row



class _Duration(click.ParamType[float]):
    """A duration such as 90, 90s, 10m or 2h, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d{1,6})([smh]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no time: give 90s, 10m or 2h", param, ctx)
        return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@click.command()
@click.argument("device", required=False)
@click.option(
    "--fleet", metavar="GLOB|FILE", help="Many: devices at the broker by a pattern, or a file, one id a line."
)
@click.option("--stages", default="1,10%,100%", show_default=True, metavar="LIST",
              help="Of --fleet: how many devices have it after each stage.")  # fmt: skip
@click.option("--wait-healthy", type=_Duration(), default="10m", show_default=True, metavar="TIME",
              help="Of --fleet: how long a stage is watched before the next.")  # fmt: skip
@click.option("--keep-going", is_flag=True, help="Of --fleet: a device that fails does not end it.")
@click.option("--sensors", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER",
              help="Your own sensors go along: its *.py. [default: those of the cable]")  # fmt: skip
@click.option("--url", metavar="URL",
              help="The device fetches the files from this folder of a web server or store.")  # fmt: skip
@click.option("--export", type=TablesOption(), help="Only write the release there, for --url. No device is needed.")
@click.option("--version", "version", metavar="TEXT", help="Name of the version. [default: that of the firmware here]")
@click.option("--downgrade", is_flag=True, help="Also if the version is older than the one installed there.")
@click.option("--rollback", is_flag=True, help="Go back to the version before.")
@click.option("--timeout", type=Finite(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="For each device, until the new version is confirmed.")  # fmt: skip
@broker_options_if(lambda options: options["export"] is None)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ota(
    device: str | None, fleet: str | None, stages: str, wait_healthy: float, keep_going: bool,
    sensors: Path | None, url: str | None, export: Location | None, version: str | None, downgrade: bool,
    rollback: bool, timeout: float, access: Access | None, as_json: bool,
) -> int:  # fmt: skip
    """Update the application of DEVICE over the air.

    The firmware of this installation is compiled for the device, which fetches what it does not have, verifies it,
    starts it once, and keeps it when it has run well for a minute and delivered a reading; otherwise it goes back by
    itself. The command waits for that. The board's boot.py, main.py and startup.py are
    updated only over the cable, by umqtt deploy.

    With --fleet the devices of a stage are updated side by side, and watched: one that restarts meanwhile goes back to
    the version before. Then the next stage begins. A device that has the release already is not touched, so the same
    command goes on where it was.

    \b
    Example:
      umqtt ota pump-7 --broker mqtt://192.168.1.2
      umqtt ota --fleet 'pump-*' --stages 1,10%,100% --wait-healthy 10m
      umqtt ota --export s3://releases/pumps
      umqtt ota --fleet 'pump-*' --url https://releases.example.org/pumps/
      umqtt ota pump-7 --rollback
    """
    from umqtt_kit.ota.order import Wanted
    from umqtt_kit.ota.store import Store

    typed = click.get_current_context().get_parameter_source("fleet") is ParameterSource.COMMANDLINE
    if access is None:
        assert export is not None
        if device is not None or typed or rollback or url is not None:
            raise click.UsageError("--export sends nothing: give no device, --fleet, --url or --rollback")
        return _export(export, Wanted(version=version, sensors=sensors), as_json)
    store = None if url is None else Store(url, access.ca)
    wanted = Wanted(version, downgrade, sensors, store, timeout)
    if device is not None and not typed:
        return _one(access, device, wanted, rollback=rollback, as_json=as_json)
    if device is not None or fleet is None:
        raise click.UsageError("give one DEVICE, or --fleet")
    if rollback:
        raise click.UsageError("--rollback is for one DEVICE")
    from umqtt_kit.ota.rollout import Rollout, find_devices, parse_stages

    devices = find_devices(access, fleet)
    with live_display() as show:

        def on_change(row: Row) -> None:
            if show is None:
                say(f"stage {row.stage}: {row.device}: {row.state} {row.text}".rstrip())
            else:
                show(_table(rollout.rows))

        rollout = Rollout(
            access, devices, parse_stages(stages, len(devices)), wanted, healthy_s=wait_healthy,
            stop_on_failure=not keep_going, on_change=on_change,
        )  # fmt: skip
        if show is not None:
            show(_table(rollout.rows))
        rollout.run()
    return _show_end(rollout, as_json)


def _one(access: Access, device: str, wanted: Wanted, *, rollback: bool, as_json: bool) -> int:
    from umqtt_kit.ota.order import roll_back, update

    if rollback:
        done = roll_back(access, device, wanted.timeout_s, say)
    else:
        # A store sends the pieces itself. The bar need not fill up: the device does not ask for what it has already.
        with progress_bar("sent", None, wanted=wanted.store is None) as add:
            done = update(access, device, wanted, say, lambda release, size: add(advance=size, total=release.size))
    if as_json:
        values = {"device": device, "before": done.before.get("fw"), "already": done.already, **done.result}
        click.echo(json.dumps(values))
        return 0
    version, slot = done.result.get("version"), done.result.get("slot")
    what = "already; nothing was changed" if done.already else f"in slot {slot}, confirmed"
    print_result(f"{device} runs {version} {what}")
    return 0


def _export(place: Location, wanted: Wanted, as_json: bool) -> int:
    from umqtt_kit.deploy.filesets import OPTIONAL
    from umqtt_kit.ota.store import export

    # The release of a board depends on the modules that its settings need, and on nothing else of the board.
    kinds = itertools.chain.from_iterable(itertools.combinations(OPTIONAL, size) for size in range(len(OPTIONAL) + 1))
    releases = [wanted.release(frozenset(kind)) for kind in kinds]
    count, version = export(releases, place), releases[0].version
    if as_json:
        manifests = [release.manifest for release in releases]
        click.echo(json.dumps({"place": str(place), "version": version, "files": count, "manifests": manifests}))
    else:
        print_result(f"{place} holds {version} for every board: {count} files")
    return 0


def _table(rows: list[Row]) -> Table:
    cells = ((str(row.stage or "-"), row.device, row.state, row.text) for row in rows)
    return table(("stage", "device", "state", "version or reason"), cells)


def _show_end(rollout: Rollout, as_json: bool) -> int:
    failed = rollout.failed
    if as_json:
        click.echo(json.dumps({"ok": not failed, "devices": [row.as_dict() for row in rollout.rows]}))
    else:
        results().print(_table(rollout.rows))
        if failed:
            left = sum(row.state == "left alone" for row in rollout.rows)
            say(
                f"{len(failed)} of {len(rollout.rows)} devices failed, {left} were left alone; the same command goes on"
            )
    return max((row.exit_code for row in failed), default=0)
