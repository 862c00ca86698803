"""The command `umqtt`: finds the command, runs it, turns what goes wrong into a line and an exit code."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import click

from umqtt_kit import commands
from umqtt_kit.errors import EXIT_INTERRUPTED, EXIT_USAGE, Interrupted, KitError

# Imported when called: `umqtt broker` need not wait for what `umqtt demo` imports. With an underscore: a helper.
_COMMANDS = tuple(sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if "_" not in module.name))


class _Commands(click.Group):
    """The commands of the package `commands`; each module has a click command of the module's own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"umqtt_kit.commands.{cmd_name}"), cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="umqtt-robust", prog_name="umqtt", message="%(prog)s %(version)s")
def umqtt() -> None:
    """From a MicroPython board to a row in a Spark table, without losing a reading.

    \b
    Exit codes: 0 ok, 1 readings lost or duplicated, 2 usage, 3 no device, 4 network,
    5 device error, 6 something missing on this machine.

    \b
    Example:
      umqtt demo --seconds 20
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Errors are printed on stderr, one line each."""
    try:
        result = umqtt.main(args=arguments, prog_name="umqtt", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "umqtt"
        message = error.format_message().replace("\n", " ").rstrip(".")
        click.echo(f"{path}: {message} — try: {path} --help", err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        click.echo(f"umqtt: {error.format_message()}", err=True)
        return error.exit_code
    except KitError as error:
        click.echo(f"umqtt: {error}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("umqtt: interrupted", err=True)
        return EXIT_INTERRUPTED
    except Interrupted as error:
        click.echo("umqtt: terminated", err=True)
        return error.exit_code
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run())


if __name__ == "__main__":
    main()
