"""What a deployment sends and removes: the files of earlier deployments compared with the wanted ones, by SHA-256.

/deployed.json on the board says what deployments put there:

    {"version": "0.1.0", "board": "UNIX", "optional": ["tls"], "complete": true, "files": {"/main.py": "<sha256>", …}}

During a deployment it lists the old and the new files, and `complete` is false. So after any interruption the next
deployment knows what it may remove. The hashes in it are never trusted; the files are hashed on the board.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit.deploy.build import AS_SOURCE, Build
from umqtt_kit.device import Board

RECORD = "/deployed.json"
MAIN = "/main.py"
OVER_THE_AIR = "/ota"
SENSORS = "/sensors/"
_BLOCK = 4096
_SOME = 4


@dataclass(frozen=True)
class Record:
    """What /deployed.json says, or its defaults without one. files: path to SHA-256, "" where it is not known."""

    version: str | None = None
    board: str | None = None
    optional: tuple[str, ...] = ()
    complete: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a deployment will do.

    send, remove: paths; foreign: paths to be removed too, though no deployment put them there; ota: whether versions
    that came over the air are there; hashes: of all files that are to be there.
    """

    build: Build
    record: Record
    hashes: dict[str, str]
    send: tuple[str, ...]
    remove: tuple[str, ...]
    foreign: tuple[str, ...]
    ota: bool

    @property
    def changes(self) -> bool:
        return bool(self.send or self.remove or self.foreign or self.ota or not self.record.complete)

    @property
    def send_bytes(self) -> int:
        return sum(len(self.build.files[path]) for path in self.send)

    def as_dict(self) -> dict[str, object]:
        return {
            "version": self.build.version,
            "board": self.build.board,
            "optional": list(self.build.optional),
            "files": len(self.hashes),
            "send": {path: len(self.build.files[path]) for path in self.send},
            "send_bytes": self.send_bytes,
            "remove": [*self.remove, *self.foreign, *([OVER_THE_AIR] if self.ota else [])],
            "unchanged": len(self.hashes) - len(self.send),
        }


def read_record(board: Board) -> Record:
    """Return what /deployed.json on the board says; the defaults if it is missing or not a record."""
    text = board.get(RECORD)
    if text is None:
        return Record()
    try:
        values = loads(text)
        return Record(
            str(values["version"]),
            str(values["board"]),
            tuple(str(name) for name in values["optional"]),
            bool(values["complete"]),
            {str(path): str(digest) for path, digest in values["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        # Written by another program or by hand: then nothing is known, and nothing is removed because of it.
        return Record()


def record_text(build: Build, files: dict[str, str], *, complete: bool) -> bytes:
    values = {
        "version": build.version,
        "board": build.board,
        "optional": list(build.optional),
        "complete": complete,
        "files": files,
    }
    return json.dumps(values, separators=(",", ":")).encode()


def write_record(board: Board, build: Build, files: dict[str, str], *, complete: bool) -> None:
    board.put(RECORD, record_text(build, files, complete=complete))


def make_plan(board: Board, record: Record, build: Build, *, replace: bool, keep_sensors: bool = True) -> Plan:
    """Compare the board with the wanted files, and return what to do.

    replace: overwrite and remove files that no deployment put there. keep_sensors: sensors of the user that were
    deployed before stay. Raises KitError (exit code 5) if the files cannot be deployed as things are.
    """
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in build.files.items()}
    listed = board.list_files("/")
    kept = {path for path in record.files if keep_sensors and path.startswith(SENSORS) and path in listed}
    present = board.hashes(path for path in hashes.keys() | kept if path in listed)
    send = tuple(path for path, digest in hashes.items() if present.get(path) != digest)
    hashes |= {path: present[path] or "" for path in sorted(kept - hashes.keys())}
    ours = set(record.files) - {RECORD}
    foreign = _in_the_way(board, listed, set(hashes), ours)
    strangers = [path for path in foreign if path not in ours]
    # Also a main.py that was deployed and then edited on the board.
    untouched = ours - {path for path in AS_SOURCE if record.complete and present.get(path) != record.files.get(path)}
    programs = [path for path in send if path in listed and path not in untouched and _is_a_program(board, path)]
    if (strangers or programs) and not replace:
        _refuse(strangers, programs)
    plan = Plan(
        build,
        record,
        hashes,
        send,
        tuple(sorted(path for path in ours - set(hashes) if path in listed)),
        tuple(path for path in foreign if path not in ours),
        OVER_THE_AIR in listed,
    )
    _check_room(board, plan, listed)
    return plan


def _in_the_way(board: Board, listed: dict[str, int], wanted: set[str], ours: set[str]) -> list[str]:
    """Return the files that MicroPython would import instead of ours: NAME.py and NAME/ come before NAME.mpy."""
    found = []
    for path in sorted(wanted):
        stem = path.removesuffix(".mpy")
        if stem == path:
            continue
        found += [other for other in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__init__.mpy") if other in listed]
        # The root folder is searched before /lib.
        if path.startswith("/lib/"):
            shadow = path.removeprefix("/lib")
            found += [other for other in (shadow, shadow.removesuffix(".mpy") + ".py") if other in listed]
    return [path for path in dict.fromkeys(found) if path not in wanted and path not in ours]


def _is_a_program(board: Board, path: str) -> bool:
    """Return whether somebody wrote this file: a fresh MicroPython's boot.py has only comments."""
    text = (board.get(path) or b"").decode(errors="replace")
    return any(line.strip() and not line.strip().startswith("#") for line in text.splitlines())


def _refuse(strangers: list[str], programs: list[str]) -> None:
    reasons = []
    if programs:
        reasons.append(f"{', '.join(programs)} on the board would be overwritten")
    if strangers:
        names = ", ".join(strangers[:_SOME]) + (f" and {len(strangers) - _SOME} more" if len(strangers) > _SOME else "")
        reasons.append(f"{names} would be used instead of what is deployed")
    raise KitError(
        f"{'; '.join(reasons)}, and no deployment put that there so — save what you need, then: umqtt deploy --replace",
        EXIT_DEVICE,
    )


def _check_room(board: Board, plan: Plan, listed: dict[str, int]) -> None:
    # A file takes whole blocks, except very small ones; the old file of a name is removed only after the new one is
    # there.
    free = board.info().flash_free
    blocks = {path: -(-len(plan.build.files[path]) // _BLOCK) * _BLOCK for path in plan.send}
    growth = sum(blocks[path] - listed.get(path, 0) for path in plan.send)
    needed = max(growth, 0) + max(blocks.values(), default=0)
    freed = sum(listed.get(path, 0) for path in plan.remove)
    if needed > free + freed:
        raise KitError(
            f"the flash has {free // 1024} KB free and needs about {needed // 1024} KB — "
            "remove files with: mpremote fs rm, or flash MicroPython anew",
            EXIT_DEVICE,
        )
