"""What an operator does: each act is a command of `umqtt`, which the console shows, writes down and runs.

So page and command line cannot differ, and what was done can be done again by hand. The audit log is a file of JSON
lines: one when an act begins, one when it ends. An act that cannot be written down is not begun.
"""

import asyncio
import json
import os
import re
import secrets
import shlex
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .events import Hub

_NAME = re.compile(r"[^/+#\0-\x1f\x7f\ud800-\udfff]{1,64}")
_PATTERN = _NAME
_MOST_LINES = 400
_LONGEST_LINE = 2000
_KEPT = 200
_RUNNING_AT_ONCE = 8
_STOPS_WITHIN_S = 10.0
_READ_AT_START = 1 << 20


class ActRefused(Exception):
    """The act is not possible. The text says why."""


class Planned(NamedTuple):
    """An act before it is run.

    :ivar arguments: of `umqtt`, without those that name the broker.
    :ivar text: what will happen, in one sentence.
    :ivar file: content of a file, whose path stands for FILE in arguments; "" for none.
    """

    arguments: Sequence[str]
    text: str
    file: str = ""


class Kind(NamedTuple):
    """A kind of act. role: who may; plan(args): returns it, or raises ActRefused."""

    role: str
    plan: Callable[[Mapping[str, Any]], Planned]


def _text(args: Mapping[str, Any], name: str, pattern: re.Pattern[str] = _NAME) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ActRefused(f"{name} must be a text without / + # and control characters, of at most 64 characters")
    return value


_SAYS = {
    "ping": "asks who runs there, and since when",
    "get": "asks for its settings",
    "set": "changes one setting",
    "log": "asks for its newest log lines",
    "crash": "asks for its last traceback",
    "read": "reads a folder, or a part of a file",
    "outbox": "asks which messages wait",
    "reboot": "restarts it; it answers afterwards",
    "pause": "stops its readings until it is told to resume, or restarts",
    "resume": "lets it take readings again",
    "output": "switches an output for some seconds",
}


def _command(args: Mapping[str, Any]) -> Planned:
    device, command = _text(args, "device"), args.get("command")
    if command not in _SAYS:
        raise ActRefused(f"command must be one of {', '.join(_SAYS)}")
    more = args.get("arguments", [])
    if not isinstance(more, list) or len(more) > 3 or not all(isinstance(one, str) and "\0" not in one for one in more):
        raise ActRefused("arguments must be a list of at most three texts")
    wait = ["--timeout", "60"] if command == "reboot" else []
    return Planned(["cmd", *wait, "--", device, command, *more], f"{device}: {_SAYS[command]}.")


def _settings(args: Mapping[str, Any]) -> Planned:
    devices, settings = args.get("devices"), args.get("settings")
    if not isinstance(devices, list) or not devices or len(devices) > 1000:
        raise ActRefused("devices must be a list of ids and patterns")
    names = [_text({"devices": one}, "devices") for one in devices]
    if not isinstance(settings, dict) or not settings:
        raise ActRefused('settings must be an object such as {"interval_ms": 10000}')
    try:
        # A JSON text is a TOML value too, but for null, and for objects, whose pairs TOML writes with =.
        rows = "".join(f"{json.dumps(str(key))} = {_toml(value)}\n" for key, value in settings.items())
    except ValueError as error:
        raise ActRefused(str(error)) from error
    content = f"[group.console]\ndevices = {json.dumps(names)}\n\n[group.console.settings]\n{rows}"
    who = names[0] if len(names) == 1 else f"{len(names)} devices or patterns"
    text = f"{who}: {', '.join(settings)} become desired; each device takes them now, or when it is back."
    return Planned(["settings", "apply", "FILE"], text, content)


def _toml(value: Any) -> str:
    if value is None:
        raise ValueError("a desired setting cannot be null: umqtt cmd DEVICE set KEY null restores a default")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _update(args: Mapping[str, Any]) -> Planned:
    stages, wait = args.get("stages", "1,10%,100%"), args.get("wait_healthy", "10m")
    if not isinstance(stages, str) or not re.fullmatch(r"\d{1,6}%?(,\d{1,6}%?){0,9}", stages):
        raise ActRefused("stages must be numbers or shares, such as 1,10%,100%")
    if not isinstance(wait, str) or not re.fullmatch(r"\d{1,6}[smh]?", wait):
        raise ActRefused("wait_healthy must be a time, such as 10m")
    if args.get("device"):
        device = _text(args, "device")
        text = (
            f"{device} gets the firmware of this installation, tries it, and keeps it when it has run well for a "
            "minute; otherwise it goes back by itself."
        )
        return Planned(["ota", "--", device], text)
    fleet = _text(args, "fleet", _PATTERN)
    text = (
        f"All devices that match {fleet} get the firmware of this installation in stages {stages}; a device that fails "
        f"ends it. Each stage is watched for {wait}. Stopping leaves the rest as it is."
    )
    return Planned(["ota", f"--fleet={fleet}", "--stages", stages, "--wait-healthy", wait], text)


def _rollback(args: Mapping[str, Any]) -> Planned:
    device = _text(args, "device")
    return Planned(["ota", "--rollback", "--", device], f"{device} goes back to the version before.")


def _rotate(args: Mapping[str, Any]) -> Planned:
    device = _text(args, "device")
    text = (
        f"{device} gets a new key over the air, sealed with its old one; keys.json of the console's folder changes too."
    )
    return Planned(["keys", "rotate", "--", device], text)


KINDS: Mapping[str, Kind] = {
    "command": Kind("operate", _command),
    "settings": Kind("operate", _settings),
    "update": Kind("admin", _update),
    "rollback": Kind("admin", _rollback),
    "rotate": Kind("admin", _rotate),
}
"""The acts by their names."""


@dataclass
class Act:
    """One act. state: running, done, failed, stopped, or interrupted: the console ended before it did."""

    id: str
    who: str
    at: int
    kind: str
    command: str
    text: str
    state: str = "running"
    exit_code: int | None = None
    ended: int | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))

    def as_dict(self) -> dict[str, Any]:
        """Return it for a page."""
        return {**self.__dict__, "lines": list(self.lines)}


class Acts:
    """Runs acts, and keeps the audit log.

    :param audit: the file of the log.
    :param program: what runs `umqtt`, with the arguments before those of an act.
    :param broker: the options that name the broker.
    :param environment: more variables for it, such as the broker's password.
    """

    def __init__(
        self, audit: Path, hub: Hub, program: Sequence[str], broker: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._audit = audit
        self._hub = hub
        self._program = list(program)
        self._broker = list(broker)
        self._environment = {**os.environ, **environment}
        self._acts: OrderedDict[str, Act] = OrderedDict((act.id, act) for act in _read(audit))
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def listed(self) -> list[dict[str, Any]]:
        """Return the newest acts, the newest one first."""
        return [act.as_dict() for act in reversed(self._acts.values())]

    def plan(self, kind: str, args: Mapping[str, Any]) -> tuple[Planned, str]:
        """Return an act before it is run, and its command line.

        :raises ActRefused: it is not possible.
        """
        if kind not in KINDS:
            raise ActRefused(f"there is no act {kind}: {', '.join(KINDS)}")
        planned = KINDS[kind].plan(args)
        return planned, shlex.join(["umqtt", *self._with_broker(planned.arguments)])

    def begin(self, who: str, kind: str, args: Mapping[str, Any]) -> Act:
        """Begin an act, and return at once.

        :raises ActRefused: it is not possible, or cannot be written down.
        """
        planned, line = self.plan(kind, args)
        if len(self._processes) >= _RUNNING_AT_ONCE:
            raise ActRefused(f"{_RUNNING_AT_ONCE} acts are running: wait for one, or stop it")
        now = time.time_ns() // 1_000_000
        act = Act(secrets.token_hex(8), who, now, kind, line, planned.text)
        said = {
            "id": act.id,
            "who": who,
            "at": now,
            "kind": kind,
            "args": dict(args),
            "command": line,
            "text": act.text,
        }
        self._write_down(said)
        self._keep(act)
        task = asyncio.get_running_loop().create_task(self._run(act, planned))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return act

    def note(self, who: str, kind: str, args: Mapping[str, Any], text: str) -> str:
        """Write down that something begins that no command of `umqtt` does; return its id.

        :raises ActRefused: it cannot be written down.
        """
        act = Act(secrets.token_hex(8), who, time.time_ns() // 1_000_000, kind, "", text)
        entry = {"id": act.id, "who": who, "at": act.at, "kind": kind, "args": dict(args), "command": "", "text": text}
        self._write_down(entry)
        self._keep(act)
        return act.id

    def noted(self, act_id: str, problem: str = "") -> None:
        """Write down how something ended that was noted; "" for an id: nothing was."""
        act = self._acts.get(act_id)
        if act is not None:
            act.state, act.ended = "failed" if problem else "done", time.time_ns() // 1_000_000
            act.lines.extend([problem] if problem else [])
            self._end(act)

    def stop(self, act_id: str) -> Act:
        """Stop a running act, as Ctrl-C does.

        :raises ActRefused: it is not running.
        """
        process = self._processes.get(act_id)
        if process is None:
            raise ActRefused("this act is not running any more")
        act = self._acts[act_id]
        act.state = "stopped"
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        return act

    async def close(self) -> None:
        """Stop what is running, and wait for it."""
        for act_id in list(self._processes):
            self.stop(act_id)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOPS_WITHIN_S)
        for process in self._processes.values():
            process.kill()

    def _with_broker(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with the broker's options, which stand before those that end with --."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return [*arguments[:at], *self._broker, *arguments[at:]]

    async def _run(self, act: Act, planned: Planned) -> None:
        file = self._audit.with_name(f".{act.id}.toml")
        arguments = [str(file) if one == "FILE" else one for one in planned.arguments]
        try:
            if planned.file:
                file.write_text(planned.file, "utf-8")
            process = await asyncio.create_subprocess_exec(
                *self._program, *self._with_broker(arguments), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
            self._processes[act.id] = process
            self._tell(act)
            assert process.stdout is not None
            while (line := await _line(process.stdout)) is not None:
                act.lines.append(line[:_LONGEST_LINE])
                self._tell(act)
            act.exit_code = await process.wait()
            if act.state == "running":
                act.state = "failed" if act.exit_code else "done"
        except OSError as error:
            act.state = "failed"
            act.lines.append(f"the command could not be run: {error.strerror}")
        finally:
            self._processes.pop(act.id, None)
            file.unlink(missing_ok=True)
            act.ended = time.time_ns() // 1_000_000
        self._end(act)

    def _keep(self, act: Act) -> None:
        self._acts[act.id] = act
        while len(self._acts) > _KEPT:
            self._acts.popitem(last=False)

    def _end(self, act: Act) -> None:
        self._tell(act)
        lines = [*act.lines][-20:]
        with suppress(ActRefused):
            self._write_down(
                {"id": act.id, "ended": act.ended, "state": act.state, "exit_code": act.exit_code, "lines": lines}
            )

    def _tell(self, act: Act) -> None:
        self._hub.tell("act", act.as_dict(), act.id)

    def _write_down(self, entry: Mapping[str, Any]) -> None:
        """Append a line to the audit log, durably.

        :raises ActRefused: it cannot be written.
        """
        try:
            handle = os.open(self._audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise ActRefused(
                f"nothing was done, as the audit log {self._audit} cannot be written: {error.strerror}"
            ) from error


async def _line(stream: asyncio.StreamReader) -> str | None:
    """Return the next line without its end; None at the end of the stream."""
    try:
        line = await stream.readline()
    except ValueError:
        return "(a line was too long)"
    return line.decode(errors="backslashreplace").rstrip("\r\n") if line else None


def _read(audit: Path) -> list[Act]:
    """Return the newest acts of the log."""
    try:
        with audit.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_AT_START))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    found: OrderedDict[str, Act] = OrderedDict()
    for line in lines:
        try:
            entry = json.loads(line)
            if "command" in entry:
                made = {name: entry[name] for name in ("id", "who", "at", "kind", "command", "text")}
                found[entry["id"]] = Act(**made, state="interrupted")
            elif entry["id"] in found:
                act = found[entry["id"]]
                act.state, act.exit_code, act.ended = entry["state"], entry["exit_code"], entry["ended"]
                act.lines.extend(entry["lines"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a crash, or by the limit
    return list(found.values())[-_KEPT:]
