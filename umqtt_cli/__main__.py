"""Entry point of the command `umqtt`: runs the subcommand, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import click

from umqtt_cli import project
from umqtt_cli.console import check_writing
from umqtt_cli.entry import DISTRIBUTION, missing_package
from umqtt_cli.errors import (
    EXIT_DEFECT,
    EXIT_INTERRUPTED,
    EXIT_MISSING,
    EXIT_OK,
    EXIT_USAGE,
    Interrupted,
    KitError,
    ReaderGone,
)
from umqtt_cli.escape import printable
from umqtt_cli.groups import CommandGroup

# Each command is an entry point, in one of these groups of pyproject.toml: the group's title, the extra that its
# commands need, and a module that only this extra brings.
_GROUPS = {
    "umqtt.cable": ("Board on a cable", "kit", "serial"),
    "umqtt.desk": ("Without a board", "kit", "serial"),
    "umqtt.air": ("Device over the air", "kit", "serial"),
    "umqtt.broker": ("Broker", "broker", "aiohttp"),
    "umqtt.data": ("Data", "spark", "pyspark"),
    "umqtt.page": ("Page", "console", "argon2"),
}
_TRACEBACK = "UMQTT_TRACEBACK"
_ENVIRONMENT = {
    "UMQTT_DEVICE": "board of every command with --device",
    "UMQTT_BOARDS": "folder of board descriptions of your own",
    "UMQTT_UF2_DRIVES": "where an RP2's drive is mounted, with : between",
    "UMQTT_BROKER": "broker of every command with --broker",
    "UMQTT_USERNAME": "user name there",
    "UMQTT_PASSWORD": "password there, unless --password-file is given",
    "UMQTT_STORE_PASSWORD": "password of a broker's store in Redis, unless its address has password_file",
    "UMQTT_CONSOLE_PASSWORD": "password that umqtt console --add-user sets, instead of asking",
    "UMQTT_KEYS": "file of the keys of boards, instead of keys.json beside umqtt.toml or in this folder",
    "UMQTT_MICROPYTHON": "command that runs virtual boards' MicroPython",
    _TRACEBACK: "1 also prints where in umqtt a defect is",
}
_MOST_SHOWN = 200
# click names the type of a number: "'abc' is not a valid integer range".
_KIND_OF_NUMBER = re.compile(r"not a valid (integer|float)(?: range)?\b")
_NUMBERS = {"integer": "a whole number", "float": "a number"}


@cache
def registered() -> dict[str, EntryPoint]:
    """Return the entry point of every command, by the command's name. Raises KitError."""
    try:
        found = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        line = f"{DISTRIBUTION} is not installed here — in a checkout of the project: make setup"
        raise KitError(line, EXIT_MISSING) from None
    return {one.name: one for one in sorted(found) if one.group in _GROUPS}


class _Commands(CommandGroup):
    """The click group of the registered commands. A command's module is imported only when it runs."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        context = super().make_context(*arguments, **options)
        context.obj, context.default_map = project.Project(), {}
        if not context.resilient_parsing:  # completion prints no error, and uses no values
            context.obj = project.read_project(Path.cwd())
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click does not say which command an option without its value belongs to.
            if error.ctx is None and ctx.invoked_subcommand:
                command = self.get_command(ctx, ctx.invoked_subcommand) or self
                error.ctx = click.Context(command, ctx, ctx.invoked_subcommand)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(registered())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in registered():
            return None
        command = registered()[cmd_name].load()
        if ctx.obj and ctx.obj.values:
            defaults = project.defaults_of(command, ctx.obj.values, ctx.obj.require_allowed)
            ctx.default_map = {cmd_name: defaults}
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, each with its whole first sentence, and how to install what is missing."""
        for group, (title, extra, module) in _GROUPS.items():
            names = [one.name for one in registered().values() if one.group == group]
            if importlib.util.find_spec(module) is None:  # their modules may need what is missing
                with formatter.section(f"{title}, after pip install '{DISTRIBUTION}[{extra}]'"):
                    formatter.write_text(", ".join(names))
            else:
                self.write_commands(ctx, formatter, title, names, max(map(len, registered())))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Environment"):
            formatter.write_dl(list(_ENVIRONMENT.items()))
        with formatter.section(f"{project.FILE}, in this folder or one above it"):
            keys = ", ".join(project.KEYS)
            formatter.write_text(f'Options of every command, as key = "value", once you allow the file: {keys}.')
        with formatter.section("Completion of commands and options in bash (zsh and fish: the same)"):
            formatter.write_text('eval "$(_UMQTT_COMPLETE=bash_source umqtt)"')


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="umqtt-robust", prog_name="umqtt", message="%(prog)s %(version)s")
def umqtt() -> None:
    """From a MicroPython board to a row in a Spark table, without losing a reading.

    \b
    Exit codes: 0 ok, 1 readings lost or duplicated, 2 usage, 3 no device, 4 network,
    5 device error, 6 something missing on this machine, 70 a defect of umqtt itself.

    \b
    Example:
      umqtt demo --seconds 20
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code. Errors are printed on stderr, one line each."""
    try:
        return _run(arguments)
    except ReaderGone:
        return EXIT_OK
    except Exception as error:  # noqa: BLE001 - the last resort
        if os.environ.get(_TRACEBACK):
            traceback.print_exc()
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SHOWN]
        _say(f"umqtt: this is a defect of umqtt ({text}) — please report it with {_saved_traceback()}")
        return EXIT_DEFECT


def _saved_traceback() -> str:
    """Write the traceback of the current exception into a new file; return its name, or how else to get it."""
    try:
        handle, name = tempfile.mkstemp(prefix="umqtt-", suffix=".traceback")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(traceback.format_exc())
        return name
    except OSError:
        return f"what {_TRACEBACK}=1 shows"


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = umqtt.main(args=arguments, prog_name="umqtt", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "umqtt"
        # click writes a list of choices as indented lines; they are joined into one line.
        message = " ".join(error.format_message().split()).rstrip(".")
        message = _KIND_OF_NUMBER.sub(lambda found: f"not {_NUMBERS[found[1]]}", message)
        _say(f"{path}: {message} — try: {path} --help")
        return EXIT_USAGE
    except click.ClickException as error:
        _say(f"umqtt: {error.format_message()}")
        return error.exit_code
    except KitError as error:
        _say(f"umqtt: {error}")
        return error.exit_code
    except ModuleNotFoundError as error:
        line = missing_package(error)
        if line is None:
            raise
        _say(f"umqtt: {line}")
        return EXIT_MISSING
    except (click.Abort, KeyboardInterrupt):
        _say("umqtt: interrupted")
        return EXIT_INTERRUPTED
    except Interrupted as error:
        _say("umqtt: terminated")
        return error.exit_code
    return result if isinstance(result, int) else 0


def _say(line: str) -> None:
    # If stderr cannot be written to, the exit code still reports the failure.
    with contextlib.suppress(OSError):
        click.echo(printable(line), err=True)


def main() -> None:
    """Run the installed command."""
    check_writing()
    code = run()
    if "deltalake" in sys.modules:
        # It sometimes aborts a process that ends, and with it changes the exit code (docs/sql.md).
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
