"""Puts settings and secrets onto a board.

At any moment, what is there is consistent: the settings name a network only while its password is there, and an
encrypted broker only while its CA is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_kit.deploy.filesets import optional_modules
from umqtt_kit.deploy.plan import read_record
from umqtt_kit.device import Board, Info, Manner, Port, read_configuration
from umqtt_kit.device.configuration import SECRETS, SETTINGS
from umqtt_kit.device.guess import check_network
from umqtt_kit.firmware_settings import firmware_module, settings_module
from umqtt_kit.provision.sensors import SensorCheck, try_sensor
from umqtt_kit.provision.values import Change, Target, target
from umqtt_kit.sizes import PROGRAM_BLOCKS, RECORD_BYTES, room_and_years


@dataclass(frozen=True)
class Provisioned:
    """The result for one board.

    port: its name; changed: files that were written; deploy: whether the firmware there lacks modules for these
    settings; room: about how long the flash keeps readings without a broker, and how long it lasts, as text; open:
    networks without a password; sensors: the name of each, why it cannot be read or None, and the metrics it gave.
    """

    port: str
    device_id: str
    changed: tuple[str, ...]
    deploy: bool
    room: str
    open: tuple[str, ...]
    sensors: tuple[tuple[str, str | None, dict[str, float]], ...]

    def as_dict(self) -> dict[str, object]:
        sensors = [{"sensor": name, "problem": problem, "metrics": found} for name, problem, found in self.sensors]
        return asdict(self) | {"changed": list(self.changed), "open": list(self.open), "sensors": sensors}


def prepare(board: Board, port: Port, change: Change) -> tuple[Target, Info]:
    """Return what the board is to have, and its Info; nothing is written.

    Raises KitError: exit code 2 if the board would refuse it, 5 if its image cannot reach a network.
    """
    info = board.info()
    current = read_configuration(board)
    if change.settings.get("sensors"):
        named = change.settings.get("board") or (current.settings or {}).get("board")
        try:
            change.settings["sensors"] = SensorCheck.of(board, info, port, named).checked(change.settings["sensors"])
        except KitError as error:
            raise KitError(f"{board.name}: {error} — nothing was written", error.exit_code) from error
    try:
        wanted = target(current, change)
    except ValueError as error:
        raise KitError(f"{board.name}: {error} — nothing was written", EXIT_USAGE) from error
    check_network(info, port, wanted.settings)
    return wanted, info


def provision(port: Port, change: Change) -> Provisioned:
    """Write a change onto one board; then the board restarts. Raises KitError."""
    with Board(port, manner=Manner.STOP) as board:
        wanted, info = prepare(board, port, change)
        changed = write(board, wanted)
        record = read_record(board)
        entries = wanted.settings.get("sensors", ())
        sensors = tuple((entry.get("name") or entry["module"], *try_sensor(board, entry)) for entry in entries)
    needed = optional_modules(wanted.settings)
    return Provisioned(
        port.name,
        device_id(wanted, info),
        changed,
        record.complete and not needed <= set(record.optional),
        _room(wanted, info, record.version is not None),
        tuple(ssid for ssid in wanted.settings.get("wifi", ()) if not wanted.secrets.get("wifi", {}).get(ssid)),
        sensors,
    )


def _room(wanted: Target, info: Info, deployed: bool) -> str:
    settings = settings_module().check_settings(wanted.settings)
    blocks = info.flash_free // 4096 - (0 if deployed else PROGRAM_BLOCKS)
    interval_ms = settings["sleep_s"] * 1000 or settings["interval_ms"]
    program_size = 256 if info.platform == "rp2" else 32
    # As in room.tell() of the firmware.
    kept = RECORD_BYTES if settings["encoding"] == "cbor" else RECORD_BYTES // 3
    hours, years = room_and_years(interval_ms, program_size, max(0, blocks), settings["outbox"], kept)
    return firmware_module("room").describe(hours, years)


def write(board: Board, wanted: Target) -> tuple[str, ...]:
    """Write the files that differ; return their paths. Raises KitError."""
    current = read_configuration(board)
    changed = [path for path, content in wanted.certificates.items() if _put(board, path, content)]
    if wanted.secrets != (current.secrets or {}):
        # The passwords of networks that the old settings name stay until the new settings are there.
        both = _union(current.sections, wanted.secrets)
        board.put(SECRETS, _json(both))
        changed.append(SECRETS)
    else:
        both = wanted.secrets
    if changed or wanted.settings != current.settings:
        # A change over the air that is on trial would undo what is written now.
        board.remove([f"{SETTINGS}.was", f"{SECRETS}.was"])
    if wanted.settings != current.settings:
        board.put(SETTINGS, _json(wanted.settings))
        changed.append(SETTINGS)
    if both != wanted.secrets:
        board.put(SECRETS, _json(wanted.secrets))
    return tuple(changed)


def device_id(wanted: Target, info: Info) -> str:
    """Return the id under which the board will publish."""
    return str(wanted.settings.get("device_id") or info.unique_id or "")


def about_dot(device_id: str) -> str:
    """Return what is wrong with a device id for some brokers, and what to do; "" if it suits all."""
    if "." not in device_id:
        return ""
    return (
        f"{device_id} has a dot: RabbitMQ makes levels of a topic of it, so that nobody gets the readings, and NATS "
        "refuses it as client id — give the device another id where the broker is one of these"
    )


def _put(board: Board, path: str, content: bytes) -> bool:
    if board.get(path) == content:
        return False
    board.put(path, content)
    return True


def _union(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    both = dict(new)
    both["wifi"] = old.get("wifi", {}) | new.get("wifi", {})
    return both if both["wifi"] else new


def _json(values: object) -> bytes:
    # Not escaped: an SSID of other than ASCII letters stays readable, and takes fewer bytes.
    return json.dumps(values, ensure_ascii=False).encode()
