"""The proof of the proof: mistakes planted in each part of the chain, and whether `umqtt prove` finds them.

`python host_tests/end_to_end/planted_chain.py [--seed N] [--minutes M] [NAME ...]` prints a row for each mistake:
the seed, what the verdict says, and the seconds from the start of the chain to the verdict. Exit code: 0 if every
mistake was found.
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
from umqtt_kit.demo.boards import board_ids  # noqa: E402
from umqtt_kit.deploy.build import deployed_files  # noqa: E402
from umqtt_kit.processes import module_command  # noqa: E402
from umqtt_kit.prove.faults import Fault, faults_of  # noqa: E402
from umqtt_kit.prove.updates import version_of  # noqa: E402

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


# What is acknowledged was not written, if the disk is full.
_IGNORES_A_FULL_DISK = """
append = Spool.append
def careless(self, *arguments):
    try:
        append(self, *arguments)
    except Exception:
        pass
Spool.append = careless
"""
_IGNORES_CHECKSUMS = """
from spark_ingest.spool import blocks
class Right:
    __ne__ = lambda *_: False
blocks.block_checksum = lambda *_: Right()
"""
_FINDS_NO_ALERTS = """
from spark_ingest.gold.alerts import Alerts
Alerts.find = lambda *_: None
"""

#: Each mistake, and the kinds of faults that show it: a plan must have each of them twice.
PLANTED: dict[str, tuple[OnBoard | InProcess, tuple[str, ...]]] = {
    "board: a message counts as delivered when it was sent": (
        OnBoard(
            "/lib/umqtt_robust/session.py",
            "MAYBE_SENT | DUP)  # [MQTT-3.3.1-2]\n",
            "MAYBE_SENT | DUP)\n            self.remove(packet_id)\n",
        ),
        (),
    ),
    "board: does not send again what a dead link carried": (
        OnBoard("/lib/umqtt_robust/session.py", "        self.outbox.rewind(session)\n", ""),
        ("cut", "cut_in_packet"),
    ),
    "board: every eighth place of the flash is not written": (
        OnBoard(
            "/lib/umqtt_robust/flash.py",
            "            self._write(name, head, first)  # last: now the message is stored\n",
            "            if place % 8:\n                self._write(name, head, first)\n",
        ),
        ("power",),
    ),
    "board: what waits in flash is sent in another order": (
        OnBoard("/lib/umqtt_robust/backlog.py", "        self.oldest.sort()\n", ""),
        ("power",),
    ),
    "board: with a backlog it does not boot": (
        OnBoard(
            "/lib/umqtt_robust/backlog.py",
            "    # Messages beyond `slots` take no room from new ones.\n",
            "    if store._stored > 20:\n        raise MemoryError\n",
        ),
        ("refuse", "power"),
    ),
    "board: a boot has the identity of the last one": (
        OnBoard(
            "/app/identity.py",
            'self.boot = "%d-%s" % (boot_count, binascii.hexlify(self.random_bits).decode())',
            'self.boot = "1-00"',
        ),
        ("power",),
    ),
    "board: a new session at the broker empties the outbox": (
        OnBoard(
            "/lib/umqtt_robust/session.py",
            "        self.taken_over = False\n        inbound",
            "        self.taken_over = False\n"
            "        for packet_id in list(self.outbox.slot_of):\n            self.remove(packet_id)\n        inbound",
        ),
        ("same_id",),
    ),
    "board: forgets which commands it has carried out": (
        OnBoard("/app/ledger.py", "        return self._ids.get(command_id)\n", "        return None\n"),
        ("burst", "cut_in_packet"),
    ),
    "board: forgets at boot which replies wait": (
        OnBoard(
            "/app/ledger.py", "            elif order > self._sent:\n                self._waiting.append(order)\n", ""
        ),
        ("burst", "power_in_flash"),
    ),
    "board: installs what nobody has signed": (
        OnBoard("/app/guard.py", "if signed.needs_signature(name, args) and", "if False and"),
        ("update unsigned",),
    ),
    "board: tries for ever a version that does not start": (
        OnBoard("/boot_choice.py", "boots.tries - 1, boots.previous", "boots.tries, boots.previous"),
        ("update broken",),
    ),
    "broker: acknowledges before the disk has it": (_broker(broker_mistakes.ACKNOWLEDGES_EARLY), ("broker_power",)),
    "broker: does not sync": (_broker(broker_mistakes.DOES_NOT_SYNC), ("broker_power",)),
    "broker: loses what was in flight when a link ends": (
        _broker(broker_mistakes.LOSES_THE_WINDOW),
        ("collector_dies",),
    ),
    "broker: sends what waited in another order": (
        _broker(broker_mistakes.SHUFFLES_PAGES),
        ("broker_dies", "collector_stops"),
    ),
    "collector: acknowledges before the disk has it": (_collector(mistakes.ACKNOWLEDGES_EARLY), ("collector_dies",)),
    "collector: does not sync": (_collector(mistakes.DOES_NOT_SYNC), ("collector_power",)),
    "collector: acknowledges what a full disk refused": (_collector(_IGNORES_A_FULL_DISK), ("collector_disk_full",)),
    "collector: begins a clean session": (_collector(mistakes.CLEAN_SESSION), ("collector_dies",)),
    "pipeline: takes the newest progress": (_pipeline(mistakes.READS_LATEST_PROGRESS), ("spark_dies",)),
    "pipeline: appends without a transaction": (_pipeline(mistakes.APPENDS_WITHOUT_TRANSACTION), ("spark_dies",)),
    "pipeline: does not deduplicate": (_pipeline(mistakes.DOES_NOT_DEDUPLICATE), ("cut_in_packet",)),
    "pipeline: forgets late readings": (_pipeline(mistakes.FORGETS_LATE_READINGS), ("power_in_flash",)),
    "pipeline: believes a damaged set of readings": (_pipeline(mistakes.IGNORES_DAMAGE), ("spark_bit",)),
    "pipeline: reads damaged blocks of the spool": (_pipeline(_IGNORES_CHECKSUMS), ("spool_bit", "spark_stops")),
    "pipeline: finds no alerts": (_pipeline(_FINDS_NO_ALERTS), ("power", "power_in_flash")),
}


def seed_for(kinds: tuple[str, ...], minutes: float) -> int:
    """Return the first seed whose plan has each of these kinds twice; of an update, "update broken" or "unsigned"."""

    def has(faults: list[Fault], kind: str) -> bool:
        name, _, which = kind.partition(" ")
        return sum(one.kind == name and (not which or version_of(one.draw).endswith(which)) for one in faults) > 1

    plans = ((seed, faults_of(seed, minutes * 60, board_ids(2))) for seed in range(1, 10_000))
    return next(seed for seed, faults in plans if all(has(faults, kind) for kind in kinds))


@contextlib.contextmanager
def planted(mistake: OnBoard | InProcess) -> Iterator[None]:
    """Let the chains that are started meanwhile have this mistake."""
    if isinstance(mistake, InProcess):

        def command(module: str, *arguments: str) -> list[str]:
            return mistake.command(*arguments) if module == mistake.module else module_command(module, *arguments)

        part = "umqtt_kit.prove.brokers" if mistake.module == "umqtt_broker" else "umqtt_kit.demo.parts"
        with mock.patch(f"{part}.module_command", command):
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


def told_of(found: dict) -> str:
    """Return in some words what a verdict says."""
    count = found.get("count", {})
    told = [f"{count[key]} {words}" for key, words in _COUNTS.items() if count.get(key)]
    lists = {words: found.get(key, []) for key, words in _LISTS.items()}
    told += [f"{len(lines)} {words}" for words, lines in lists.items() if lines]
    return ", ".join(told) or f"exit code {found.get('code')}"


_COUNTS = {"lost": "lost", "duplicated": "doubled", "not_made": "never made"}
_LISTS = {
    "unanswered": "commands unanswered",
    "repeated": "commands carried out twice",
    "disordered": "devices out of order",
    "alerts": "wrong alerts",
    "versions": "wrong versions",
    "silent": "devices away",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="whether `umqtt prove` finds planted mistakes")
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a mistake's name; all without")
    parser.add_argument("--seed", type=int, help="by default the first one that plans what shows the mistake")
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args(arguments)
    missed = 0
    for name, (mistake, kinds) in PLANTED.items():
        if options.names and not any(part in name for part in options.names):
            continue
        begun = time.monotonic()
        seed = options.seed or seed_for(kinds, options.minutes)
        with tempfile.TemporaryDirectory() as folder, planted(mistake):
            found = verdict(seed, options.minutes, Path(folder))
        told = "NOT FOUND" if found["holds"] else told_of(found)
        missed += found["holds"]
        print(f"| {name} | {seed} | {told} | {time.monotonic() - begun:.0f} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
