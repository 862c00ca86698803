"""A group of commands, such as `umqtt spool`, whose help has the whole first sentence of each."""

from __future__ import annotations

from collections.abc import Iterable

import click

_LONGEST_SENTENCE = 400


class CommandGroup(click.Group):
    """A click Group whose help shows each command's whole first sentence; click cuts it at the terminal's width."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands as one section."""
        self.write_commands(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter, title: str, names: Iterable[str], width: int = 0
    ) -> None:
        """Write these commands as a section. width: least width of the column of names, in characters."""
        found = [(name, self.get_command(ctx, name)) for name in names]
        with formatter.section(title):
            formatter.write_dl(
                [
                    (f"{name:{width}}", command.get_short_help_str(_LONGEST_SENTENCE))
                    for name, command in found
                    if command
                ]
            )
