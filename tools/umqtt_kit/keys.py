"""The keys that commands to boards are signed with: a file of the owner, which nobody else may read.

    {"pump-7": {"key": "64 hexadecimal digits", "counter": 1795000000123, "made": "2026-11-23T10:00:00+00:00"}}

other, a second key, is there while a rotation is under way, or was broken off: the board has one of the two. counter is
the last one that was given out. The firmware's own signed.py signs.
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

from umqtt_kit.errors import EXIT_USAGE, KitError
from umqtt_kit.files import write_file
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.strict_json import loads

ENVIRONMENT = "UMQTT_KEYS"
_DEFAULT = "keys.json"
_MODE_OF_OTHERS = 0o077
_HEX_KEY = 64


class Keys:
    """The file `file`; without it: that of UMQTT_KEYS, or keys.json in this folder. It need not be there."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or Path(os.environ.get(ENVIRONMENT) or _DEFAULT)

    def read(self) -> dict[str, dict[str, Any]]:
        """All entries by device id. Raises KitError (exit code 2) for a damaged file, or one that others may read."""
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
            # Not the text itself: it holds keys.
            raise KitError(f"{self.file} is not what umqtt keys wrote — restore it from a backup", EXIT_USAGE) from None
        return entries

    def offer(self, device_id: str) -> str:
        """A new key in hex, kept beside the one that the device has until accept() or reject() says which it has."""
        new = secrets.token_hex(_HEX_KEY // 2)
        with self._changed() as entries:
            if device_id in entries:
                entries[device_id]["other"] = new
            else:
                entries[device_id] = {"key": new, "counter": 0, "made": datetime.now(UTC).isoformat(timespec="seconds")}
        return new

    def accept(self, device_id: str, key: str) -> None:
        """The device has this key, and no other is needed any more."""
        with self._changed() as entries:
            entry = entries[device_id]
            if entry["key"] != key:
                entry["made"] = datetime.now(UTC).isoformat(timespec="seconds")
            entry["key"] = key
            entry.pop("other", None)

    def swap(self, device_id: str) -> bool:
        """Sign with the other key from now on; False when there is none."""
        with self._changed() as entries:
            entry = entries.get(device_id, {})
            if "other" not in entry:
                return False
            entry["key"], entry["other"] = entry["other"], entry["key"]
            return True

    def sign(self, device_id: str, command: dict[str, Any]) -> bytes | None:
        """The payload of a command with a counter that no other has, or None without a key. Raises KitError."""
        if device_id not in self.read():
            return None
        with self._changed() as entries:
            entry = entries[device_id]
            # By the clock, so that several computers with the same keys need not know of each other.
            entry["counter"] = max(entry["counter"] + 1, time.time_ns() // 1_000_000)
            key, counter = entry["key"], entry["counter"]
        text = json.dumps({**command, "counter": counter}, ensure_ascii=False).encode()
        return firmware_module("signed").sign(bytes.fromhex(key), device_id, text)

    def seal(self, device_id: str, data: bytes) -> bytes:
        """data for the device alone, with its nonce before it."""
        signed = firmware_module("signed")
        nonce = secrets.token_bytes(signed.NONCE_SIZE)
        return nonce + signed.seal(bytes.fromhex(self.read()[device_id]["key"]), nonce, data)

    @contextmanager
    def _changed(self) -> Iterator[dict[str, dict[str, Any]]]:
        # Two commands at once take turns. The folder is locked, not the file: that one is replaced.
        try:
            folder = os.open(self.file.absolute().parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                entries = self.read()
                yield entries
                write_file(self.file, json.dumps(entries, indent=1).encode(), private=True)
            finally:
                os.close(folder)
        except OSError as error:
            raise KitError(f"{self.file}: {error.strerror} — give another file by {ENVIRONMENT}", EXIT_USAGE) from error
