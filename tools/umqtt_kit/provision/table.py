"""Settings of many boards from a CSV file: a header line, then one line per board. An empty cell changes nothing.

    unique_id, port      which board: its unique id in hex (umqtt devices shows it), or its port; one of the two
    device_id            its name
    brokers              addresses, separated by spaces
    wifi, wifi_password  networks 1, 2 …: wifi, wifi_password, wifi2, wifi2_password, …
    username, password   at the broker
    ca, cert, key        certificate files in PEM, relative to the CSV file
    anything else        a key of settings.json; the value is JSON, or else text

Before the first board is changed, every line is checked, and every board is found and asked.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from umqtt_cli.errors import EXIT_NO_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.device import Port, find_ports, look
from umqtt_kit.firmware_settings import settings_module
from umqtt_kit.provision.values import TLS_FILES, Change, read_certificate, read_private, set_from_arguments
from umqtt_kit.provision.write import prepare

_NETWORK = re.compile(r"wifi(\d*)(_password)?")
_WHICH = ("unique_id", "port")


@dataclass
class Row:
    """One line of the file. line: its number; one of unique_id and port is not empty."""

    line: int
    unique_id: str
    port: str
    change: Change = field(repr=False)


def read_rows(file: Path) -> list[Row]:
    """Return the rows, each checked as far as possible without its board. Raises KitError (exit code 2)."""
    try:
        text = read_private(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KitError(f"{file} is no UTF-8 — save it as CSV in UTF-8", EXIT_USAGE) from error
    reader = csv.DictReader(io.StringIO(text, newline=None), skipinitialspace=True, strict=True)
    rows: list[Row] = []
    try:
        _check_header(reader.fieldnames or [], file)
        for cells in reader:
            rows.append(_row(cells, f"{file}, line {reader.line_num}", reader.line_num, file.parent))
    except csv.Error as error:
        raise KitError(f"{file}, line {reader.line_num}: {error} — nothing was written", EXIT_USAGE) from error
    if not rows:
        raise KitError(f"{file} names no board — one line a board, below the header", EXIT_USAGE)
    _refuse_doubles(rows, file)
    return rows


def find_boards(rows: list[Row], file: Path) -> list[tuple[Row, Port]]:
    """Return each row with its board, after checking that the board would accept the values. Raises KitError.

    Nothing is written.
    """
    ports = find_ports()
    by_id: dict[str, Port] = {}
    found: list[tuple[Row, Port]] = []
    if any(row.unique_id for row in rows):
        for port in ports:
            if port.boards:
                with look(port, interrupt=True) as board:
                    by_id[board.info().unique_id or ""] = port
    for row in rows:
        if row.unique_id:
            port = by_id.get(row.unique_id)
        else:
            port = next((port for port in ports if row.port in (port.name, port.path)), None)
        if port is None:
            raise KitError(
                f"{file}, line {row.line}: no board {row.unique_id or row.port} is connected — nothing was written; "
                "see: umqtt devices",
                EXIT_NO_DEVICE,
            )
        if any(port == other for _, other in found):
            raise KitError(f"{file}, line {row.line}: {port.name} is named twice — nothing was written", EXIT_USAGE)
        with look(port, interrupt=True) as board:
            prepare(board, port, row.change)
        found.append((row, port))
    return found


def _check_header(columns: Sequence[str], file: Path) -> None:
    known = {*_WHICH, "device_id", "brokers", "username", "password", *TLS_FILES, *settings_module().DEFAULTS}
    for column in columns:
        if column not in known and not _NETWORK.fullmatch(column):
            raise KitError(f"{file}: unknown column '{column}' — known are: {', '.join(sorted(known))}, wifi, "
                           "wifi_password, wifi2 …", EXIT_USAGE)  # fmt: skip
    if not set(_WHICH) & set(columns):
        raise KitError(f"{file}: there must be a column unique_id or port, to tell which board", EXIT_USAGE)


def _row(cells: dict[str | None, str | None], where: str, line: int, folder: Path) -> Row:
    if None in cells or None in cells.values():
        raise KitError(f"{where}: not as many cells as the header has — nothing was written", EXIT_USAGE)
    values = {str(key): str(value).strip() for key, value in cells.items() if value and value.strip()}
    row = Row(line, values.pop("unique_id", "").lower(), values.pop("port", ""), Change())
    if bool(row.unique_id) == bool(row.port):
        raise KitError(f"{where}: give unique_id or port, one of them — nothing was written", EXIT_USAGE)
    change = row.change
    networks = _networks(values)
    if networks:
        change.wifi = networks
    for key in ("username", "password"):
        if key in values:
            change.mqtt[key] = values.pop(key)
    for key in TLS_FILES:
        if key in values:
            change.tls[key] = read_certificate(folder / values.pop(key), key)
    if "device_id" in values:
        change.settings["device_id"] = values.pop("device_id")
    change.settings |= set_from_arguments([f"{key}={value}" for key, value in values.items()])
    try:
        settings_module().check_settings({"brokers": ["mqtt://host"]} | change.settings)
    except ValueError as error:
        raise KitError(f"{where}: {error} — nothing was written", EXIT_USAGE) from error
    return row


def _networks(values: dict[str, str]) -> list[tuple[str, str | None]]:
    """Remove the columns of networks from `values`; return the networks with their passwords."""
    names: dict[int, str] = {}
    passwords: dict[int, str] = {}
    for column in list(values):
        match = _NETWORK.fullmatch(column)
        if match:
            (passwords if match[2] else names)[int(match[1] or 1)] = values.pop(column)
    return [(names[number], passwords.get(number)) for number in sorted(names)]


def _refuse_doubles(rows: list[Row], file: Path) -> None:
    seen: dict[str, int] = {}
    for row in rows:
        # Two boards with one device id would disconnect each other from the broker, and their readings would be mixed
        # up.
        for what, value in (("board", row.unique_id or row.port), ("device_id", row.change.settings.get("device_id"))):
            if value is None:
                continue
            first = seen.setdefault(f"{what} {value}", row.line)
            if first != row.line:
                raise KitError(
                    f"{file}, line {row.line}: {what} {value} is that of line {first} — nothing was written", EXIT_USAGE
                )
