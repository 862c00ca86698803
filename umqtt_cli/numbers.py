"""Option types for numbers on the command line."""

import math
import re
from typing import Any

import click

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Finite(click.FloatRange):
    """click's FloatRange, which also refuses infinity, and nan, which no bound excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with one line for the user."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Bytes(click.ParamType):
    """A number of bytes in the syntax of :func:`parse_bytes`, at least `least`."""

    name = "BYTES"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes; fail with one line for the user."""
        try:
            number = parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self._least:
            self.fail(f"{value} is less than {self._least} bytes", param, ctx)
        return number


def parse_bytes(text: str | int) -> int:
    """Return the bytes meant by ``1048576``, ``1M``, ``20G`` … :raises ValueError: if it is none of these."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes: give one like 1048576, 500M or 20G")
    return int(match[1]) << _UNITS[match[2].upper()]
