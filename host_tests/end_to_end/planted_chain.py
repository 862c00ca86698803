"""The proof of the proof: mistakes planted in each part of the chain, and whether `umqtt prove` finds them.

`python host_tests/end_to_end/planted_chain.py [--seed N] [--minutes M] [NAME ...]` prints a line for each mistake: what
the verdict says, and the seconds that the run took. Exit code: 0 if every mistake was found.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

_TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(_TESTS), str(_TESTS / "broker"), str(_TESTS / "spark")]

import broker_mistakes  # noqa: E402
from proof import mistakes  # noqa: E402
from umqtt_kit.deploy.build import deployed_files  # noqa: E402
from umqtt_kit.processes import module_command  # noqa: E402

from umqtt_cli.__main__ import run  # noqa: E402


class OnBoard(NamedTuple):
    """A mistake in a board's program: `old` in a file, replaced by `new`."""

    file: str
    old: str
    new: str


class InProcess(NamedTuple):
    """A mistake in a part's process. command: gets the part's arguments, returns the command line."""

    module: str
    command: Callable[..., list[str]]


def _broker(mistake: str) -> InProcess:
    return InProcess("umqtt_broker", lambda *arguments: broker_mistakes.command(mistake, *arguments))


def _collector(mistake: str) -> InProcess:
    return InProcess("spark_ingest.collector", lambda *rest: [*mistakes.command("collector", mistake), *rest])


def _pipeline(mistake: str) -> InProcess:
    return InProcess("spark_ingest.pipeline", lambda *rest: [*mistakes.command("pipeline", mistake), *rest])


PLANTED: dict[str, OnBoard | InProcess] = {
    "board: a message counts as delivered when it was sent": OnBoard(
        "/lib/umqtt_robust/session.py",
        "MAYBE_SENT | DUP)  # [MQTT-3.3.1-2]\n",
        "MAYBE_SENT | DUP)\n            self.remove(packet_id)\n",
    ),
    "board: every eighth place of the flash is not written": OnBoard(
        "/lib/umqtt_robust/flash.py",
        "            self._write(name, head, first)  # last: now the message is stored\n",
        "            if place % 8:\n                self._write(name, head, first)\n",
    ),
    "board: a boot has the identity of the last one": OnBoard(
        "/app/identity.py",
        'self.boot = "%d-%s" % (boot_count, binascii.hexlify(self.random_bits).decode())',
        'self.boot = "1-00"',
    ),
    "board: a new session at the broker empties the outbox": OnBoard(
        "/lib/umqtt_robust/session.py",
        "        self.taken_over = False\n        inbound",
        "        self.taken_over = False\n"
        "        for packet_id in list(self.outbox.slot_of):\n            self.remove(packet_id)\n        inbound",
    ),
    "broker: acknowledges before the disk has it": _broker(broker_mistakes.ACKNOWLEDGES_EARLY),
    "broker: loses what was in flight when a link ends": _broker(broker_mistakes.LOSES_THE_WINDOW),
    "collector: acknowledges before the disk has it": _collector(mistakes.ACKNOWLEDGES_EARLY),
    "collector: begins a clean session": _collector(mistakes.CLEAN_SESSION),
    "pipeline: takes the newest progress": _pipeline(mistakes.READS_LATEST_PROGRESS),
    "pipeline: appends without a transaction": _pipeline(mistakes.APPENDS_WITHOUT_TRANSACTION),
    "pipeline: does not deduplicate": _pipeline(mistakes.DOES_NOT_DEDUPLICATE),
    "pipeline: forgets late readings": _pipeline(mistakes.FORGETS_LATE_READINGS),
}


@contextlib.contextmanager
def planted(mistake: OnBoard | InProcess) -> Iterator[None]:
    """Let the chains that are started meanwhile have this mistake."""
    if isinstance(mistake, InProcess):

        def command(module: str, *arguments: str) -> list[str]:
            return mistake.command(*arguments) if module == mistake.module else module_command(module, *arguments)

        with mock.patch("umqtt_kit.demo.parts.module_command", command):
            yield
        return
    files: dict[str, bytes | Path] = dict(deployed_files())
    source = Path(str(files[mistake.file])).read_text()
    assert source.count(mistake.old) == 1, f"{mistake.file} has changed: plant this mistake anew"
    files[mistake.file] = source.replace(mistake.old, mistake.new).encode()
    with mock.patch("umqtt_kit.demo.boards.deployed_files", lambda: files):
        yield


def verdict(seed: int, minutes: float, folder: Path) -> dict:
    """Run `umqtt prove` in this process and return what it prints; its exit code alone if it printed nothing."""
    printed = io.StringIO()
    command = ["prove", "--minutes", str(minutes), "--seed", str(seed), "--boards", "2", "--devices", "5", "--json"]
    with contextlib.redirect_stdout(printed):
        code = run([*command, "--keep", str(folder)])
    text = printed.getvalue()
    return json.loads(text) if text else {"holds": False, "code": code}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="whether `umqtt prove` finds planted mistakes")
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a mistake's name; all without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args(arguments)
    missed = 0
    for name, mistake in PLANTED.items():
        if options.names and not any(part in name for part in options.names):
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, planted(mistake):
            found = verdict(options.seed, options.minutes, Path(folder))
        count = found.get("count", {})
        told = ", ".join(f"{key} {count[key]}" for key in ("lost", "duplicated", "not_made") if count.get(key))
        told = told or ", ".join(found.get("unanswered", [])) or f"exit code {found.get('code')}"
        missed += found["holds"]
        print(f"{name}: {'NOT FOUND' if found['holds'] else told} ({time.monotonic() - begun:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
