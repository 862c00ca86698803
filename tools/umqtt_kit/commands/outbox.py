"""umqtt outbox: shows what waits on a board, and what its broker did not take."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umqtt_cli.console import print_result, print_table, say
from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_kit.device.choose import choose, device_option

if TYPE_CHECKING:
    from umqtt_kit.device import Board

_PROGRAM = """
def _u_outbox(args):
    try: from app import once
    except ImportError: from app.modules import once
    try: return True, once("act_outbox", "run", board, args)
    except ValueError as error: return False, str(error)
print(repr(_u_outbox({args!r})))
"""


@click.command()
@device_option
@click.option("--send-on", metavar="ID", help="Send this message behind all others; all: each of them.")
@click.option("--drop", metavar="ID", help="Delete this message; all: each of them.")
@click.option("--export", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write them to this file, one JSON object a line; they stay on the board.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def outbox(device: str, send_on: str | None, drop: str | None, export: Path | None, as_json: bool) -> int:
    """Show what waits on a board, and what its broker does not take.

    A message is set aside if the broker ends each link at it: a topic or a size that it does not take. It stays on the
    board until new ones need its room. The firmware has to run, and goes on meanwhile.

    \b
    Example:
      umqtt outbox --device ttyACM0
      umqtt outbox --export aside.jsonl
      umqtt outbox --send-on all
    """
    from umqtt_kit.device import look

    if send_on is not None and drop is not None:
        raise click.UsageError("--send-on and --drop exclude each other")
    wanted = {name: _number(value) for name, value in (("send_on", send_on), ("drop", drop)) if value is not None}
    if export is not None and export.exists():
        raise KitError(f"{export} exists — give another name", EXIT_USAGE)
    port = choose(device)
    with look(port) as board:
        if not board.beside:
            raise KitError(f"{port.name}: the firmware does not run — start it: umqtt shell, then Ctrl-D", EXIT_DEVICE)
        aside = _aside(board)
        if export is not None:
            _export(board, aside, export)
            say(f"{len(aside)} messages are in {export}")
        done = _ask(board, wanted) if wanted else None
        found = _ask(board, {})
        aside = _aside(board) if wanted else aside
    if as_json:
        click.echo(json.dumps({"port": port.name, "waiting": found["waiting"], "aside": aside, "done": done}))
        return 0
    print_result(f"{found['waiting']} messages wait, {len(aside)} are set aside")
    if aside:
        rows = [(str(number), printable(str(topic)), str(size)) for number, topic, size in aside]
        print_table(("id", "topic", "bytes"), rows)
    return 0


def _number(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 65536:
        raise click.UsageError(f"{text!r} is no ID of a message: give one of the list, or all")
    return int(text)


def _ask(board: Board, args: dict[str, Any]) -> dict[str, Any]:
    """Return what the firmware answers. Raises KitError (exit code 5) if it refuses."""
    answer = board.value(_PROGRAM.format(args=args))
    if not isinstance(answer, tuple) or len(answer) != 2 or not (answer[0] is False or isinstance(answer[1], dict)):
        raise KitError("the firmware gives an answer that is not known here — update it: umqtt deploy", EXIT_DEVICE)
    if not answer[0]:
        raise KitError(printable(str(answer[1])), EXIT_DEVICE)
    return dict(answer[1])


def _aside(board: Board) -> list[list[Any]]:
    found: list[list[Any]] = []
    while True:
        answer = _ask(board, {"after": len(found)})
        found += answer["aside"]
        if not answer["aside"] or len(found) >= answer["count"]:
            return found


def _export(board: Board, aside: list[list[Any]], file: Path) -> None:
    lines = []
    for number, topic, size in aside:
        payload = b""
        while len(payload) < size:
            piece = base64.b64decode(_ask(board, {"export": number, "offset": len(payload)})["payload"])
            if not piece:
                raise KitError(f"message {number} is gone — repeat the command", EXIT_DEVICE)
            payload += piece
        lines.append({"id": number, "topic": topic, "payload": base64.b64encode(payload).decode()})
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
