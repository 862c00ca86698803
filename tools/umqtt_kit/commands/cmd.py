"""umqtt cmd: sends a device a command over the broker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import print_result, say
from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.numbers import Finite
from umqtt_cli.strict_json import NoNumber, loads
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access

# The arguments of each command by name; those in brackets may be left out. Updates have a command of their own.
_COMMANDS = {
    "ping": (), "reboot": (), "pause": (), "resume": (), "crash": (), "log": (),
    "get": ("[key]",), "set": ("key", "value"), "read": ("[path]", "[offset]"), "outbox": ("[what]", "[which]"),
    "output": ("name", "value", "for_s"),
}  # fmt: skip
_MOST_TEXT = 64
# Any level of a topic; the firmware's own names allow fewer characters.
_DEVICE = re.compile(rf"[^/+#\0\ud800-\udfff]{{1,{_MOST_TEXT}}}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("device")
@click.argument("command", type=click.Choice(list(_COMMANDS)), metavar="COMMAND")
@click.argument("arguments", nargs=-1, metavar="[KEY] [VALUE]")
@click.option("--timeout", type=Finite(min=0.1), default=20.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the reply.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait for the reply as long as it takes: the device may sleep or be away.")
@click.option("--id", "command_id", metavar="TEXT", help="Ask again for the reply to this command; it runs only once.")
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cmd(
    device: str, command: str, arguments: tuple[str, ...], timeout: float, wait: bool, command_id: str | None,
    access: Access, as_json: bool,
) -> int:  # fmt: skip
    """Send DEVICE a command through the broker, and wait for its reply.

    \b
    ping                 who runs there, since when
    reboot               answered after the restart
    get [KEY]            one setting, or all
    set KEY VALUE        VALUE is JSON, or else text; null restores the default
    read [PATH] [OFFSET] a folder, or up to 1 KB of a file's text
    log, crash           the newest log lines; the last traceback
    outbox [send_on|drop|export ID]  messages at which the broker ended the link
    output NAME VALUE FOR_S  switch a relay or another output for so many seconds
    pause, resume        take no readings; take them again

    A command is carried out once, also when the device restarts or the network fails in the middle of it. A device
    that sleeps or is away has it as soon as it is back. What the device refuses is exit code 5.

    \b
    Example:
      umqtt cmd pump-7 ping --broker mqtt://192.168.1.2
      umqtt cmd pump-7 set interval_ms 5000
      umqtt cmd pump-7 reboot --wait
    """
    from umqtt_kit.device_commands import NoReply, Remote, encoded, new_id, result_of

    if command_id is not None and not 0 < len(command_id) <= _MOST_TEXT:
        raise click.UsageError(f"--id must be text of 1 to {_MOST_TEXT} characters")
    if not _DEVICE.fullmatch(device):
        raise click.UsageError(f"{device[:_MOST_TEXT]!r} is no name of a device")
    args = _args(command, arguments)
    command_id = command_id or new_id()
    encoded(command, args, command_id)  # an invalid command is refused before connecting
    told = False

    def tell() -> None:
        nonlocal told
        if wait and remote.asleep and not told:
            told = True
            say(f"{device} sleeps; it answers at its next wake")

    remote = Remote(access, device, on_status=tell)
    with remote:
        try:
            reply = remote.ask(command, args, None if wait else timeout, command_id)
        except NoReply as silence:
            again = f"--wait --id {silence.command_id}"
            raise KitError(f"{silence}; or wait for its reply to this one: {again}", silence.exit_code) from silence
    if as_json:
        click.echo(json.dumps({"device": device, "cmd": command, **reply}))
        return 0 if reply.get("ok") else EXIT_DEVICE
    result = result_of(reply, device, command)
    try:
        lines = _lines(command, result)
    except (TypeError, ValueError):
        lines = [_shown(result)]  # not in the form that the firmware gives it
    for line in lines:
        print_result(line)
    return 0


def _args(command: str, given: tuple[str, ...]) -> dict[str, Any]:
    """Return the args of the command. Raises UsageError."""
    wanted = _COMMANDS[command]
    least = sum(not name.startswith("[") for name in wanted)
    if not least <= len(given) <= len(wanted):
        usage = " ".join([command, *(name.upper() for name in wanted)])
        raise click.UsageError(f"{command} with {len(given)} arguments — write: umqtt cmd DEVICE {usage}")
    args: dict[str, Any] = dict(zip((name.strip("[]") for name in wanted), given, strict=False))
    if "what" in args:
        return outbox_args(args["what"], args.get("which"))
    if "value" in args:
        args["value"] = _value(args["value"])
    for name in ("offset", "for_s"):
        if name in args:
            if not re.fullmatch("[0-9]{1,9}", args[name]):
                raise click.UsageError(f"{name.upper()} {args[name]!r}: must be a whole number from 0 to 999999999")
            args[name] = int(args[name])
    return args


def outbox_args(what: str, which: str | None) -> dict[str, Any]:
    """Return the args of the command outbox. Raises UsageError."""
    if what not in ("after", "drop", "export", "send_on") or which is None:
        raise click.UsageError("outbox takes: send_on ID, drop ID, export ID, after NUMBER — ID is of the list, or all")
    if not re.fullmatch("[0-9]{1,9}|all", which) or (which == "all" and what in ("after", "export")):
        raise click.UsageError(f"outbox {what} {which!r}: must be a whole number")
    return {what: which if which == "all" else int(which)}


def _value(text: str) -> Any:
    try:
        return loads(text)
    except NoNumber:
        raise click.UsageError(f"VALUE {text}: JSON has no such number; in quotes it is text: '\"{text}\"'") from None
    except ValueError:
        return text


def _lines(command: str, result: Any) -> list[str]:
    """Return the result for people: text of the device as text, everything else as `name = value`."""
    if not isinstance(result, dict):
        return [_shown(result)]
    if command == "set":
        return [f"{result.get('key')} = {_shown(result.get('value'))} ({result.get('applies')})"]
    if command == "get" and result.keys() == {"key", "value"}:
        return [_shown(result["value"])]
    if command == "log":
        return [printable(str(line)) for line in result.get("lines", [])]
    if command == "read" and "text" in result:
        return [printable(line) for line in str(result["text"]).splitlines()]
    if command == "read":
        return [f"{name}/" if size is None else f"{name}  {size} bytes" for name, size in result.get("entries", [])]
    if command == "crash" and not result.get("n"):
        return ["no crash"]
    text = result.get("traceback")
    named = [f"{name} = {_shown(value)}" for name, value in result.items() if name != "traceback"]
    return named + [printable(line) for line in str(text or "").splitlines()]


def _shown(value: Any) -> str:
    return printable(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
