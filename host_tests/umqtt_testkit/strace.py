"""System calls in the order in which they began and ended, as strace saw them (Linux).

A killed process proves nothing about fsync, because the page cache survives it. To check whether something was sent
before it was on the disk, a test runs the program under `strace_command` and reads `events`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CALL = re.compile(r"^(?:(\d+) +)?(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")
_DATA = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = "<unfinished ...>"


class Event(NamedTuple):
    """The beginning of a call (`result` is None), or the end of one that succeeded.

    line: line number in the trace, from 1. begin: the line in which the call began. arguments: as strace wrote them.
    """

    line: int
    begin: int
    name: str
    arguments: str
    result: int | None

    @property
    def descriptor(self) -> int:
        """The call's first argument, a file descriptor."""
        return int(re.split(r"[,)]", self.arguments, maxsplit=1)[0])

    @property
    def data(self) -> bytes:
        """All buffers among the arguments, joined."""
        return b"".join(bytes.fromhex(found.replace("\\x", "")) for found in _DATA.findall(self.arguments))


def strace_command(output: Path, calls: str) -> list[str]:
    """Return the words to put before a command to trace its `calls` ("read,write,fdatasync") to `output`."""
    # -D: the program, not strace, is the child; -xx and -s: all data, in hexadecimal.
    return ["strace", "-D", "-f", "-qq", "-xx", "-s", "2000000", "-e", f"trace={calls}", "-o", str(output)]


def events(path: Path) -> Iterator[Event]:
    """Yield every call of a trace twice: data counts as sent when the call begins, a sync when it has ended."""
    unfinished: dict[str, tuple[int, str]] = {}
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if resumed := _RESUMED.match(line):
                thread, name, rest = resumed.groups()
                begin, arguments = unfinished.pop(thread)
                yield from _ended(number, begin, name, arguments + rest)
            elif call := _CALL.match(line):
                thread, name, arguments = call.groups()
                yield Event(number, number, name, arguments, None)
                if arguments.endswith(_UNFINISHED):
                    unfinished[thread] = (number, arguments.removesuffix(_UNFINISHED))
                else:
                    yield from _ended(number, number, name, arguments)
            # Anything else is a signal, or the end of a thread.


def _ended(line: int, begin: int, name: str, arguments: str) -> Iterator[Event]:
    result = _RESULT.search(arguments)
    if result and int(result[1]) >= 0:
        yield Event(line, begin, name, arguments, int(result[1]))
