"""Finds the Python examples of a Markdown file and runs them, against a real broker.

The blocks of a section form one program. A comment `# -> text` says that a line with that text is printed; a program
passes once all these lines were seen, so it may run for ever. Hosts that end in `.example` are the broker. A block
marked `norun` needs what a computer does not have, so it is only compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_testkit.interpreter import device_search_path, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

_HERE = Path(__file__).resolve().parent


@dataclass
class Example:
    """The program of a section. line: where its first block begins. expected: what it prints, in any order."""

    heading: str
    line: int
    run: bool = True
    source: str = ""
    expected: list[str] = field(default_factory=list)


def examples(file: Path) -> list[Example]:
    """Return every section with Python in it. Lines keep their numbers, so that a traceback names the right one."""
    found: dict[str, Example] = {}
    heading, fence = "", None
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if fence is None:
            if re.match("#+ ", line):
                heading = line.lstrip("# ")
            elif line.startswith("```"):
                fence = line
        elif line == "```":
            fence = None
        elif fence.startswith("```python"):
            norun = "norun" in fence
            key = f"{heading} (norun)" if norun else heading
            example = found.setdefault(key, Example(key, number, run=not norun))
            example.source += "\n" * (number - 1 - example.source.count("\n")) + line + "\n"
            example.expected += re.findall("# -> (.*)", line)
    return list(found.values())


def run(example: Example, *, micropython: bool, broker_port: int, folder: Path) -> str | None:
    """Run the example in this folder; return what is wrong, or None."""
    program = folder / "example.py"
    program.write_text(example.source)
    arguments = [str(_HERE / "run_example.py"), str(program), str(broker_port)]
    command = [sys.executable, "-u"]
    environment = os.environ
    if micropython:
        command = micropython_command()
        environment = {**os.environ, "MICROPYPATH": ":".join([*device_search_path(), ".frozen"])}
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment
    )
    watchdog = threading.Timer(WAIT_LIMIT_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    waiting = list(example.expected)
    printed = []
    for line in process.stdout:
        printed.append(line)
        waiting = [text for text in waiting if text not in line]
        if example.expected and not waiting:
            break
    ended_well = process.wait() == 0 if waiting or not example.expected else True
    watchdog.cancel()
    process.kill()
    process.communicate()
    if ended_well and not waiting:
        return None
    return f"missing: {waiting}; it printed:\n{''.join(printed)}"
