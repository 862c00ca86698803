"""Desired settings: a file gives them to groups of devices, the broker retains them, and each device reports its own.

    [group.cellar]
    devices = ["pump-1", "lamp-*"]          # ids, and patterns for the devices that have published a status
    settings = {interval_ms = 10000, telemetry_qos = 1}

    fleet/{device_id}/desired     {"id": "…", "cmd": "set", "args": {"settings": {…}}}, signed as commands are; retained
    fleet/{device_id}/reported    {"boot": "17-…", "settings": {…}}; retained

Where two groups set the same key of the same device, the later group in the file wins.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads
from umqtt_cli.toml_file import read_toml
from umqtt_kit.device_commands import new_id, payload_of, refusal
from umqtt_kit.firmware_settings import settings_module
from umqtt_kit.keys import Keys
from umqtt_kit.mqtt import Access, Link

# After this long without a message, all retained messages are taken to have come.
_QUIET_S = 0.5
_SENT_WITHIN_S = 30.0
_LEAVES = ("status", "desired", "reported")
_WILDCARDS = frozenset("*?[")
# Settings that a group cannot have: they make a device another one, or say which commands it trusts.
_NOT_DESIRED = ("device_id", "unsigned_commands")

AS_DESIRED, DRIFT, WAITING, REFUSED, SILENT = "as desired", "drift", "waiting", "refused", "no answer"
_EXIT_CODES = {AS_DESIRED: 0, WAITING: 0, DRIFT: EXIT_DEVICE, REFUSED: EXIT_DEVICE, SILENT: EXIT_NETWORK}


@dataclass(frozen=True)
class Group:
    """Devices and the settings desired of them. devices: ids and patterns."""

    name: str
    devices: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """The state of one device. state: AS_DESIRED and so on; text: what differs, or why."""

    device: str
    state: str
    text: str = ""

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.state]


def read_groups(file: Path) -> list[Group]:
    """Return the groups of a file, with settings checked as a device checks them. Raises KitError (exit code 2)."""
    try:
        values = read_toml(file)
    except ValueError as error:
        raise KitError(f"{error} — give a file that can be read", EXIT_USAGE) from error
    groups = values.pop("group", {})
    if values:
        raise KitError(f"{file}: {next(iter(values))!r} is not known — write tables like [group.cellar]", EXIT_USAGE)
    if not isinstance(groups, dict) or not groups:
        raise KitError(f"{file} has no group — write tables like [group.cellar]", EXIT_USAGE)
    return [_group(f"{file}: group.{name}", name, group) for name, group in groups.items()]


def _group(where: str, name: str, group: Any) -> Group:
    if not isinstance(group, dict):
        raise KitError(f"{where}: must be a table with devices and settings", EXIT_USAGE)
    for key in (*group, "devices", "settings"):
        if key not in ("devices", "settings"):
            raise KitError(f"{where}: {key!r} is not known — a group has devices and settings", EXIT_USAGE)
        if key not in group:
            raise KitError(f"{where}: {key} is missing — a group has devices and settings", EXIT_USAGE)
    devices, settings = group["devices"], group["settings"]
    if not isinstance(devices, list) or not all(isinstance(one, str) and one and not set(one) & set("/+#\0")
                                                for one in devices):  # fmt: skip
        raise KitError(f'{where}: devices must be a list of ids and patterns, for instance ["pump-*"]', EXIT_USAGE)
    if not isinstance(settings, dict):
        raise KitError(f"{where}: settings must be a table", EXIT_USAGE)
    for key in _NOT_DESIRED:
        if key in settings:
            raise KitError(f"{where}: {key} can be set only over the cable — umqtt provision", EXIT_USAGE)
    firmware = settings_module()
    try:
        firmware.check_settings({"brokers": ["mqtt://any"], **settings}, where)
        json.dumps(settings)
    except firmware.SettingsError as error:
        raise KitError(f"{error} — correct it", EXIT_USAGE) from error
    except TypeError:
        raise KitError(f"{where}: a date or time of TOML is no JSON — write it as text", EXIT_USAGE) from None
    return Group(name, tuple(devices), settings)


def named_in(groups: Iterable[Group]) -> list[str]:
    """Return the ids that groups name, without their patterns."""
    return sorted({one for group in groups for one in group.devices if not set(one) & _WILDCARDS})


def desired_of(groups: Iterable[Group], known: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the desired settings of each device that a group names. known: the ids at the broker."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        for pattern in group.devices:
            named = fnmatch.filter(known, pattern) if set(pattern) & _WILDCARDS else [pattern]
            for device in named:
                found[device] = found.get(device, {}) | group.settings
    return dict(sorted(found.items()))


@dataclass
class _Device:
    desired: dict[str, Any] | None = None
    reported: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    # The `set` that this run has sent: its id, the reply to it, and the boot whose report no longer counts.
    sent: str = ""
    reply: dict[str, Any] = field(default_factory=dict)
    old_boot: object = None

    @property
    def differing(self) -> dict[str, tuple[Any, Any]]:
        """The keys that differ, each with the reported and the desired value."""
        settings = self.reported.get("settings")
        have = settings if isinstance(settings, dict) else {}
        return {key: (have.get(key), value) for key, value in (self.desired or {}).items() if have.get(key) != value}

    @property
    def refused(self) -> bool:
        return bool(self.reply) and not self.reply.get("ok")

    @property
    def converged(self) -> bool:
        return not self.differing and (self.old_boot is None or self.reported.get("boot") != self.old_boot)


class Twins:
    """What the broker retains about all devices, kept up to date within the context.

    devices: those that are asked for one by one. RabbitMQ sends no retained messages to filters with wildcards.
    Raises KitError (exit code 4).
    """

    def __init__(self, access: Access, devices: Iterable[str] = ()) -> None:
        self._devices: dict[str, _Device] = {}
        self._asked = tuple(devices)
        self._where = access.where
        self._retained = 0
        self._link = Link(access, on_message=self._take)

    def __enter__(self) -> Self:
        self._link.__enter__()
        try:
            names = ("+", *self._asked)
            self._link.subscribe(*(f"fleet/{name}/{leaf}" for name in names for leaf in _LEAVES))
            # Brokers send retained messages before they acknowledge this later subscription, but if there are many,
            # some may come after it: wait until no more come.
            self._link.subscribe("fleet/+/reply")
            while self._link.wait_for(lambda before=self._retained: self._retained != before, _QUIET_S):
                pass
        except BaseException:
            self._link.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.__exit__(kind, error, trace)

    @property
    def known(self) -> list[str]:
        """The devices that have published a status, sorted."""
        return sorted(name for name, device in self._devices.items() if device.status)

    @property
    def managed(self) -> list[str]:
        """The devices that have desired settings, sorted."""
        return sorted(name for name, device in self._devices.items() if device.desired is not None)

    def apply(self, desired: dict[str, dict[str, Any]], timeout_s: float) -> None:
        """Publish these desired settings, and wait for the devices that are online. Raises KitError."""
        keys, payloads = Keys(), {}
        for name, settings in desired.items():
            device = self._devices.setdefault(name, _Device())
            if device.desired != settings or not device.converged:
                device.desired, device.sent = settings, new_id()
                payloads[name] = payload_of(keys, name, "set", {"settings": settings}, device.sent)
        for name, payload in payloads.items():
            self._link.publish(f"fleet/{name}/desired", payload, qos=1, retain=True)
        if not self._link.wait_for(lambda: not self._link.pending, _SENT_WITHIN_S):
            raise KitError(f"{self._where} does not take the settings — see its log", EXIT_NETWORK)
        there = [device for name in desired if (device := self._devices[name]).status.get("online")]
        self._link.wait_for(lambda: all(one.refused or one.converged for one in there), timeout_s)

    def row(self, name: str) -> Row:
        """Return how a device compares with its desired settings."""
        device = self._devices[name]
        if device.refused:
            return Row(name, REFUSED, refusal(device.reply, name, "set"))
        if device.desired is not None and device.converged:
            return Row(name, AS_DESIRED)
        differing = "; ".join(
            f"{key} is {'not reported' if have is None else json.dumps(have)}, not {json.dumps(value)}"
            for key, (have, value) in device.differing.items()
        )
        if not device.status.get("online"):
            reason = device.status.get("reason")
            return Row(name, WAITING, f"{'it has never been there' if reason is None else reason}; {differing}")
        return Row(name, SILENT if device.sent and not device.reply else DRIFT, differing)

    def _take(self, topic: str, payload: bytes, qos: int, retain: bool, *rest: object) -> None:
        self._retained += retain
        _, name, leaf = topic.split("/")
        device = self._devices.setdefault(name, _Device())
        try:
            found = loads(payload) if payload else {}
        except ValueError:
            return  # not from this project: ignored
        if not isinstance(found, dict):
            return
        if leaf == "status":
            device.status = found
        elif leaf == "reported":
            device.reported = found
        elif leaf == "reply":
            if device.sent and found.get("id") == device.sent:
                device.reply = found
                result = found.get("result")
                if isinstance(result, dict) and result.get("applies") == "after reboot":
                    device.old_boot = device.status.get("boot")
        elif not device.sent:
            args = found.get("args")
            settings = args.get("settings") if isinstance(args, dict) else None
            device.desired = settings if isinstance(settings, dict) else None
