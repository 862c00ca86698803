"""Numbers on the command line."""

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """click's FloatRange without nan, which no bound excludes, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with one line for people."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
