"""The keys that sign commands to boards: a file of their owner, which nobody else may read.

    {"pump-7": {"key": "64 hexadecimal digits", "counter": 1795000000123, "made": "2026-11-23T10:00:00+00:00"}}

An entry has a second key, `other`, while a rotation is under way or was interrupted: the board has one of the two.
`counter` is the highest counter that a signed command has had. The firmware's own signed.py makes the signatures.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from umqtt_cli.durable import replace_file
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.project import find_project
from umqtt_cli.strict_json import loads
from umqtt_kit.firmware_settings import firmware_module

ENVIRONMENT = "UMQTT_KEYS"
_DEFAULT = "keys.json"
_MODE_OF_OTHERS = 0o077
_HEX_KEY = 64


class Keys:
    """The file of keys: that of UMQTT_KEYS, else keys.json beside umqtt.toml, or in this folder without a project.

    It need not exist.
    """

    def __init__(self) -> None:
        project = find_project(Path.cwd())
        folder = project.parent if project else Path()
        self.file = Path(os.environ.get(ENVIRONMENT) or folder / _DEFAULT)

    def read(self) -> dict[str, dict[str, Any]]:
        """Return all entries by device id.

        Raises KitError (exit code 2) if the file is damaged or others may read it.
        """
        try:
            text = self.file.read_bytes()
            if self.file.stat().st_mode & _MODE_OF_OTHERS:
                what = f"{self.file} holds keys and others may read it"
                raise KitError(f"{what} — try: chmod 600 {self.file}", EXIT_USAGE)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KitError(f"{self.file}: {error.strerror} — give another file by {ENVIRONMENT}", EXIT_USAGE) from error
        try:
            entries = loads(text)
            for entry in entries.values():
                for key in (entry["key"], entry.get("other", entry["key"])):
                    if len(bytes.fromhex(key)) * 2 != _HEX_KEY:
                        raise ValueError(key)
                int(entry["counter"])
        except (ValueError, TypeError, KeyError, AttributeError):
            # The message does not quote the text, which holds keys.
            raise KitError(f"{self.file} is not what umqtt keys wrote — restore it from a backup", EXIT_USAGE) from None
        return entries

    def offer(self, device_id: str) -> str:
        """Return a new key in hex; an older key of the device is kept until accept() says which one it has."""
        new = secrets.token_hex(_HEX_KEY // 2)
        with self._changed() as entries:
            if device_id in entries:
                entries[device_id]["other"] = new
            else:
                entries[device_id] = {"key": new, "counter": 0, "made": datetime.now(UTC).isoformat(timespec="seconds")}
        return new

    def accept(self, device_id: str, key: str) -> None:
        """Record that the device has this key, and forget any other."""
        with self._changed() as entries:
            entry = entries[device_id]
            if entry["key"] != key:
                entry["made"] = datetime.now(UTC).isoformat(timespec="seconds")
            entry["key"] = key
            entry.pop("other", None)

    def swap(self, device_id: str) -> bool:
        """Sign with the device's other key from now on; return False if there is none."""
        with self._changed() as entries:
            entry = entries.get(device_id, {})
            if "other" not in entry:
                return False
            entry["key"], entry["other"] = entry["other"], entry["key"]
            return True

    def sign(self, device_id: str, command: dict[str, Any]) -> bytes | None:
        """Return a command's payload, signed with a counter that no other command has; None if the device has no key.

        Raises KitError.
        """
        if device_id not in self.read():
            return None
        with self._changed() as entries:
            entry = entries[device_id]
            # From the clock, so that several computers with the same keys need not coordinate.
            entry["counter"] = max(entry["counter"] + 1, time.time_ns() // 1_000_000)
            key, counter = entry["key"], entry["counter"]
        text = json.dumps({**command, "counter": counter}, ensure_ascii=False).encode()
        return firmware_module("signed").sign(bytes.fromhex(key), device_id, text)

    def signer(self, device_id: str, payload: bytes) -> str | None:
        """Return the key of the device, in hex, with which a reply is signed; None if with none. Raises KitError."""
        signed = firmware_module("signed")
        entry = self.read().get(device_id, {})
        for name in ("key", "other"):
            key = bytes.fromhex(entry.get(name, ""))
            if key and signed.is_signed(payload) and signed.verify(key, device_id, payload, signed.REPLY):
                return key.hex()
        return None

    def seal(self, device_id: str, data: bytes) -> bytes:
        """Return data encrypted for the device alone, with the nonce in front of it."""
        signed = firmware_module("signed")
        nonce = secrets.token_bytes(signed.NONCE_SIZE)
        return nonce + signed.seal(bytes.fromhex(self.read()[device_id]["key"]), nonce, data)

    @contextmanager
    def _changed(self) -> Iterator[dict[str, dict[str, Any]]]:
        # Concurrent commands take turns. The folder is locked, not the file, because the file is replaced.
        try:
            folder = os.open(self.file.absolute().parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                entries = self.read()
                yield entries
                replace_file(self.file, json.dumps(entries, indent=1).encode(), mode=0o600)
            finally:
                os.close(folder)
        except OSError as error:
            raise KitError(f"{self.file}: {error.strerror} — give another file by {ENVIRONMENT}", EXIT_USAGE) from error
